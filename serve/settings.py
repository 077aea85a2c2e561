"""The settings of `attenuator serve`; each field is a flag, an `ATTENUATOR_*` variable and its help."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from attenuator.commandline import CommandSettings, Positionals, Threads
from attenuator.errors import KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.ops.knobs import DEFAULT_SEED, KnobValue, check_knob, read_knob_values
from attenuator.ops.spec import SEED_HIGH

COMMAND = "serve"
POSITIONALS = Positionals(
    "BUNDLE",
    "*",
    "folder of a bundle, as `attenuator export` writes it, or of several; requests name each by its name",
)
SENDABLE = re.compile(r"[!-~]+")
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#*]+")


def check_key_text(key: str) -> None:
    """Refuses with ValueError a key that a header `Authorization` cannot carry."""
    if not SENDABLE.fullmatch(key):
        raise ValueError("a key must have one or more printable ASCII characters and no spaces")


class ServeSettings(CommandSettings):
    """Answer classification requests over HTTP, each with its own accuracy knob.

    POST /v1/classify takes texts; GET /v1/models lists models and knobs; GET /docs explains every field.
    """

    GROUPS = {
        "host": "address",
        "api_key": "keys",
        "bundle_root": "models",
        "device": "computing",
        "max_cost": "load and accuracy",
        "max_requests": "limits of arriving requests",
        "drain_timeout_ms": "stopping",
        "cors_origins": "web pages, metrics and logs",
    }
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens to the whole network."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    api_key: SecretStr | None = None
    """Key that requests must have, as `Authorization: Bearer KEY`; safer as the variable ATTENUATOR_API_KEY."""
    api_keys: SecretStr | None = None
    """File of further API keys in JSON, each with a name, limits and knob ceilings; or its content, as a variable."""
    admin_key: SecretStr | None = None
    """Key of PUT and DELETE /v1/models/{name}, as the variable ATTENUATOR_ADMIN_KEY; without one there are none."""
    bundle_root: Annotated[list[Path], NoDecode] = Field(default_factory=list)
    """Folders from which those routes may load bundles, separated by commas."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where models run; auto uses the CUDA device if it works, else the CPU, and logs which and why."""
    device_id: int = Field(default=0, ge=0, le=255)
    """Which CUDA device, as the driver counts."""
    threads: Threads = None
    """Threads inside one run; by default as many as there are cores that this process may use."""
    seed: int = Field(default=DEFAULT_SEED, ge=0, le=SEED_HIGH)
    """Seed of requests that set none, so that equal requests get equal answers."""
    max_cost: float | None = Field(default=None, gt=0)
    """Largest predicted cost of one request, in billions of multiply-adds; more is refused with 422."""
    default: Literal["goal", "exact"] = "goal"
    """What requests that set nothing run at: the default goal of the bundle's calibration, or else the defaults of its
    knobs; exact runs them, and each knob that a request leaves out, at the exact value."""
    max_batch_tokens: int = Field(default=4096, ge=1)
    """Tokens that run together in one packed batch; a longer input runs alone. A GPU wants more, such as 65536."""
    max_wait_ms: float = Field(default=2.0, ge=0, le=1000)
    """Longest wait of a batch for requests that are already being tokenized, in milliseconds."""
    max_queue_tokens: int = Field(default=262_144, ge=1)
    """Tokens that may wait, light and heavy inputs counted apart; a request over it gets 429 and Retry-After."""
    brownout_to: str = ""
    """Under load, requests without knob or goal run less accurately, down to these: KNOB=VALUE, between commas."""
    brownout_target_ms: float = Field(default=500, gt=0)
    """Predicted wait that brownouts hold, in milliseconds; knobs that may be lowered begin to fall at half of it."""
    shadow_share: float = Field(default=0, ge=0, le=1)
    """Share of texts that run again at the bundle's own exact value while the service idles; 0.01 is ample."""
    max_requests: int = Field(default=512, ge=1)
    """Requests in progress at a time, each counted once its body has arrived; a request over it gets 429."""
    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    """Largest request body, in bytes; a larger one is refused with 413."""
    max_connections: int | None = Field(default=None, ge=1)
    """Connections open at a time; by default up to 8192, as open files allow. Over it, the longest idle ones close."""
    header_timeout_ms: float = Field(default=10_000, gt=0)
    """Longest wait for a request's header, in milliseconds; then the connection is closed."""
    keep_alive_timeout_ms: float = Field(default=75_000, gt=0)
    """How long a connection stays open for its next request, in milliseconds; clients should give up earlier."""
    body_timeout_ms: float = Field(default=30_000, gt=0)
    """Longest wait for a request's body to arrive, in milliseconds; then the connection is closed."""
    min_body_bytes_per_s: int = Field(default=1024, ge=0)
    """Slowest rate at which a body may arrive after its first 5 seconds, in bytes per second; 0 allows any."""
    max_arriving_bodies: int = Field(default=512, ge=1)
    """Bodies that may be arriving at a time; over it, the one that began first gets 408."""
    max_arriving_bytes: int = Field(default=256 * 2**20, ge=1)
    """Bytes of all bodies that are arriving; over it, the one that began first gets 408."""
    drain_timeout_ms: float = Field(default=25_000, ge=0)
    """Longest wait for requests in progress when the service is asked to stop, in milliseconds; then they get 503."""
    hang_ms: float = Field(default=10_000, gt=0)
    """A batch that runs for this time and ten times its predicted one makes the service not ready, in milliseconds."""
    cors_origins: Annotated[list[str], NoDecode] = Field(default_factory=list)
    """Origins whose web pages may call the service, separated by commas (https://a.example,https://b.example), or *."""
    allowed_hosts: Annotated[list[str], NoDecode] = Field(default_factory=list)
    """Names besides localhost that requests may be for, between commas, or *; by default * unless host is loopback."""
    otel: bool = False
    """Sends OpenTelemetry traces over OTLP/HTTP, to where the OTEL_* variables say; needs the extra otel."""
    no_page: bool = False
    """Serve no playground, the page at / on which one turns the knob; / then leads to /docs."""
    metrics: Literal["open", "key", "off"] = "open"
    """Who may read GET /metrics: open to everyone, as scrapers expect; key requires an API key; off serves none."""
    log_format: Literal["text", "json"] = "text"
    """Form of the log lines on standard error; texts of requests are never logged."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""

    @field_validator("api_key", "admin_key")
    @classmethod
    def can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        """Refuses keys that no header can carry, and an empty one, which an unset variable may give."""
        if key is not None:
            check_key_text(key.get_secret_value())
        return key

    @field_validator("admin_key")
    @classmethod
    def is_a_key_of_its_own(cls, key: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        """Refuses the API key as admin key: whoever may ask could then unload every model."""
        if key is not None and key == info.data.get("api_key"):
            raise ValueError("it must differ from the API key")
        return key

    @field_validator("metrics")
    @classmethod
    def has_a_key(cls, metrics: str, info: ValidationInfo) -> str:
        """Refuses metrics that require a key where there is none."""
        if metrics == "key" and info.data.get("api_key") is None and info.data.get("api_keys") is None:
            raise ValueError("there is no API key; set ATTENUATOR_API_KEY or --api-keys")
        return metrics

    @field_validator("port", mode="before")
    @classmethod
    def no_kubernetes_link(cls, port: Any) -> Any:
        """Explains the variable that Kubernetes sets beside a service called "attenuator"."""
        if isinstance(port, str) and port.startswith("tcp://"):
            raise ValueError(
                "Kubernetes sets this variable for a service called attenuator: "
                "set enableServiceLinks to false in the pod, or use --port"
            )
        return port

    @field_validator("brownout_to")
    @classmethod
    def are_floors(cls, floors: str) -> str:
        """Refuses what is no list of knobs and values."""
        read_floors(floors)
        return floors

    @field_validator("cors_origins", "allowed_hosts", "bundle_root", mode="before")
    @classmethod
    def split_at_commas(cls, values: Any) -> Any:
        """Splits one text at its commas."""
        texts = [values] if isinstance(values, str) else values
        return [part.strip() for text in texts for part in str(text).split(",") if part.strip()]

    @field_validator("cors_origins")
    @classmethod
    def are_origins(cls, origins: list[str]) -> list[str]:
        """Refuses values that no browser sends as an origin: they would never match."""
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"'{origin[:80]}' must be an origin such as https://app.example:8443, or *")
        return origins


def read_floors(text: str) -> dict[str, KnobValue]:
    """Reads `--brownout-to`, the operator's floors by knob: `KNOB=VALUE`, several separated by commas, or none.

    Raises:
        ValueError: a part is no such pair, a knob is unknown or there twice, or a value is out of range.
    """
    floors: dict[str, KnobValue] = {}
    for name, value in read_knob_values(text).items():
        if name not in KNOBS:
            raise ValueError(f"'{name[:80]}' is no knob, must be one of: {', '.join(KNOBS)}")
        try:
            floors[name] = check_knob(KNOBS[name], value)
        except KnobOutOfRange as error:
            raise ValueError(str(error)) from None
    return floors
