"""A file of API keys: JSON, a list with one object a key.

[{"name": "search", "sha256": "9f86..", "requests_per_s": 50, "burst": 100, "tokens_per_s": 20000, "weight": 2,
  "priority": "batch", "ceilings": {"a knob": 0.5}}]
"""

import contextlib
import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError, model_validator

from attenuator.api import Priority
from attenuator.errors import AttenuatorError, InvalidRequest, KnobOutOfRange
from attenuator.json_body import refuse_repeated
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue, check_knob
from attenuator.serve.settings import check_key_text

LOWEST_RATE, HIGHEST_RATE = 1e-6, 1e9  # beyond them waits and counts overflow
LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.01, 100.0


class KeyEntry(BaseModel):
    """A key as its file has it.

    Attributes:
        name: what logs, metrics and errors call it.
        key: the key itself; it or `sha256` is given.
        sha256: its SHA-256, in hexadecimal.
        requests_per_s: how often it may be used in the long run; None without a limit.
        burst: requests that it may make at once after a pause; by default those of one second.
        tokens_per_s: how many tokens of its requests may run in the long run; None without a limit.
        burst_tokens: those that they may have at once after a pause; by default those of one second.
        weight: of its share of a busy service, beside the other keys of its class.
        priority: the class of its requests that name none; with `batch`, of all of them.
        ceilings: the most accurate value that its requests may have, by knob.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    key: Annotated[SecretStr, Field(min_length=1)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    requests_per_s: Annotated[float, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)] | None = None
    burst: Annotated[int, Field(ge=1, le=int(HIGHEST_RATE))] | None = None
    tokens_per_s: Annotated[float, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)] | None = None
    burst_tokens: Annotated[int, Field(ge=1, le=int(HIGHEST_RATE))] | None = None
    weight: Annotated[float, Field(ge=LOWEST_WEIGHT, le=HIGHEST_WEIGHT)] = 1.0
    priority: Priority = "interactive"
    ceilings: dict[str, KnobValue] = {}

    @model_validator(mode="after")
    def fits_together(self) -> "KeyEntry":
        """Refuses an entry with no key or two, a burst without a rate, and ceilings that are no knob's values."""
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("must have one of key and sha256")
        if self.key is not None:
            check_key_text(self.key.get_secret_value())
        if self.burst is not None and self.requests_per_s is None:
            raise ValueError("has burst, which requires requests_per_s")
        if self.burst_tokens is not None and self.tokens_per_s is None:
            raise ValueError("has burst_tokens, which requires tokens_per_s")
        for name, value in self.ceilings.items():
            if name not in KNOBS:
                raise ValueError(f"ceilings has '{name[:40]}', must be a knob: {', '.join(KNOBS)}")
            try:
                self.ceilings[name] = check_knob(KNOBS[name], value)
            except KnobOutOfRange as error:
                raise ValueError(f"ceilings: {error}") from None
        return self

    @property
    def digest(self) -> bytes:
        """SHA-256 of the key."""
        return bytes.fromhex(self.sha256 or "") if self.key is None else digest_of(self.key.get_secret_value())


def digest_of(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def parse_keys(content: str, where: str) -> list[KeyEntry]:
    """Reads a file's content, which error sentences call `where`: at least one key; names and keys differ.

    Raises:
        AttenuatorError: says what is wrong, and quotes no key.
    """
    with contextlib.suppress(ValueError, RecursionError):  # what is no JSON at all is told below
        try:
            json.loads(content, object_pairs_hook=refuse_repeated)  # pydantic would take the last of them
        except InvalidRequest as error:
            raise AttenuatorError(f"{where}: {error}") from None
    try:
        entries = TypeAdapter(list[KeyEntry]).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise AttenuatorError(f"{where}{': ' + place if place else ''}: {reason[0].lower()}{reason[1:]}") from None
    if not entries:
        raise AttenuatorError(f"{where} has no key, must have at least one")
    for what, values in (("name", [one.name for one in entries]), ("key", [one.digest for one in entries])):
        if len(set(values)) < len(values):
            raise AttenuatorError(f"{where} has two keys of the same {what}")
    return entries
