"""What `attenuator serve` can be told; each field is a flag, an `ATTENUATOR_*` variable and its help."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from attenuator.commandline import CommandSettings
from attenuator.ops.knobs import DEFAULT_SEED
from attenuator.ops.spec import SEED_HIGH


class ServeSettings(CommandSettings):
    """Answer classification requests over HTTP, each with its own accuracy knob.

    POST /v1/classify takes texts; GET /v1/models lists models and knobs; GET /docs explains every field.
    """

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens to the whole network."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    api_key: SecretStr | None = None
    """Key that /v1 routes want as `Authorization: Bearer KEY` (better given as ATTENUATOR_API_KEY)."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where models run; auto takes the CUDA device where it works, else the CPU, and logs which and why."""
    device_id: int = Field(default=0, ge=0, le=255)
    """Which CUDA device, as the driver counts."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads inside one run; all cores this process may use by default."""
    seed: int = Field(default=DEFAULT_SEED, ge=0, le=SEED_HIGH)
    """Seed of requests that set none, so that equal requests get equal answers."""
    max_cost: float | None = Field(default=None, gt=0)
    """Largest predicted cost of one request, in billions of multiply-adds; more is refused with 422."""
    max_batch_tokens: int = Field(default=8192, ge=1)
    """Tokens that run together in one packed batch; a longer input runs alone."""
    max_wait_ms: float = Field(default=2.0, ge=0, le=1000)
    """Longest wait of a batch for requests that are already being tokenized, in milliseconds."""
    max_queue_tokens: int = Field(default=262_144, ge=1)
    """Tokens that may wait, short and long requests counted apart; one beyond is shed with 429 and Retry-After."""
    max_requests: int = Field(default=512, ge=1)
    """Requests in progress at a time; one more is shed with 429 before its body is read."""
    max_body_bytes: int = Field(default=4 * 2**20, ge=1)
    """Largest request body, in bytes; a larger one is refused with 413."""
    body_timeout_ms: float = Field(default=30_000, gt=0)
    """Longest wait for a request's body to arrive, in milliseconds; then the connection is closed."""
    drain_timeout_ms: float = Field(default=30_000, ge=0)
    """Longest wait for requests in progress when the service is asked to stop, in milliseconds."""
    log_format: Literal["text", "json"] = "text"
    """Form of the log lines on standard error; texts of requests are never logged."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""

    @field_validator("api_key")
    @classmethod
    def can_be_sent(cls, key: SecretStr | None) -> SecretStr | None:
        """Refuses keys that no header carries; an empty one, of a variable that is not set, would open the service."""
        text = "x" if key is None else key.get_secret_value()
        if not text.isascii() or not text.isprintable() or " " in text or not text:
            raise ValueError("a key has one or more printable ASCII characters and no spaces")
        return key
