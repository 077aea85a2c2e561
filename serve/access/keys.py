"""API keys: who may ask, how often, and up to which knob values; their file is read again when it changes.

The file is JSON, a list with one object a key:

    [{"name": "search", "sha256": "9f86..", "requests_per_s": 50, "burst": 100, "tokens_per_s": 20000, "weight": 2,
      "priority": "batch", "ceilings": {"a knob": 0.5}}]

Keys are kept as their SHA-256 alone. Only their names appear in logs, metrics and errors.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi.security.utils import get_authorization_scheme_param
from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError, model_validator

from attenuator.api import Priority
from attenuator.errors import AttenuatorError, InvalidRequest, KnobOutOfRange, RateLimited, Unauthorized
from attenuator.json_body import refuse_repeated
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue, check_knob
from attenuator.serve.settings import check_key_text

log = logging.getLogger(__name__)
CHECK_INTERVAL_S = 1.0
MAX_FILE_BYTES = 2**20
ABSENT = (0, 0, 0)
SINGLE_KEY = "default"  # the name of the key in the setting `api_key`
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


@dataclass(slots=True)
class TokenBucket:
    """A token bucket, which may be overdrawn by its last use: the next ones wait until that is made up.

    Attributes:
        rate: what comes back per second.
        burst: the most that a pause saves up.
        spare: what may be used at once.
        counted_s: clock at which `spare` was counted.
    """

    rate: float
    burst: float
    spare: float
    counted_s: float

    @classmethod
    def of(cls, rate: float | None, burst: int | None, before: "TokenBucket | None") -> "TokenBucket | None":
        """A bucket, by default for what one second brings: full, or as one of the same limits was before."""
        if rate is None:
            return None
        most = burst or max(1, math.ceil(rate))
        if before is not None and (before.rate, before.burst) == (rate, most):
            return before
        return cls(rate, most, most, time.monotonic())

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is something to use; 0 where there is, by a clock that never goes back."""
        self.spare = min(self.burst, self.spare + (now_s - self.counted_s) * self.rate)
        self.counted_s = now_s
        return max(0.0, (1 - self.spare) / self.rate)


class ApiKey:
    """A key that may be used.

    Attributes:
        name: what logs and metrics call it.
        digest: SHA-256 of the key.
        requests: how often it may be used; None without a limit.
        tokens: how many tokens of its requests may run; None without a limit.
        weight: as its file has it; so are `priority` and `ceilings`.
    """

    def __init__(self, entry: KeyEntry, before: "ApiKey | None" = None) -> None:
        """Makes it; with the limits of `before`, the key of this name when the file was last read, its counts go on."""
        self.name, self.digest = entry.name, entry.digest
        self.weight, self.priority, self.ceilings = entry.weight, entry.priority, entry.ceilings
        requests, tokens = (before.requests, before.tokens) if before else (None, None)
        self.requests: TokenBucket | None = TokenBucket.of(entry.requests_per_s, entry.burst, requests)
        self.tokens: TokenBucket | None = TokenBucket.of(entry.tokens_per_s, entry.burst_tokens, tokens)

    def take(self, now_s: float) -> None:
        """Counts a request, by a clock that never goes back.

        Raises:
            RateLimited: too many requests, or tokens in those before; says when the next one is taken.
        """
        if self.tokens is not None and (wait_s := self.tokens.wait_s(now_s)):
            raise self._limited(f"may use {self.tokens.rate:g} tokens per second", wait_s)
        if self.requests is not None:
            if wait_s := self.requests.wait_s(now_s):
                raise self._limited(f"may make {self.requests.rate:g} requests per second", wait_s)
            self.requests.spare -= 1

    def spend(self, tokens: int) -> None:
        """Counts tokens that run for a request that `take` has let through: those that come later wait for it."""
        if self.tokens is not None:
            self.tokens.spare -= tokens

    def check_priority(self, priority: Priority | None) -> None:
        """Refuses with InvalidRequest a class above the key's: `interactive`, where the key's is `batch`."""
        if priority is not None and priority != self.priority == "batch":
            raise InvalidRequest(
                f'priority is "{priority}", must be "batch" for the API key \'{self.name}\'',
                param="priority",
                allowed='"batch"',
            )

    def _limited(self, limit: str, wait_s: float) -> RateLimited:
        return RateLimited(
            f"the API key '{self.name}' {limit}; try again in {math.ceil(wait_s)} s", retry_after_s=wait_s
        )


class KeyRing:
    """The keys of a service.

    Attributes:
        required: whether requests must have one.
    """

    def __init__(
        self, api_key: SecretStr | None, api_keys: SecretStr | None, admin_key: SecretStr | None = None
    ) -> None:
        """Reads the keys.

        Args:
            api_key: a key without limits.
            api_keys: path of a file of keys, or its content.
            admin_key: of the admin routes, which the file must not have.

        Raises:
            AttenuatorError: the file cannot be read, is not a list of keys, or has one of the other two.
        """
        source = "" if api_keys is None else api_keys.get_secret_value()
        self.required = api_key is not None or api_keys is not None
        self._admin = None if admin_key is None else digest_of(admin_key.get_secret_value())
        self._single = [] if api_key is None else [ApiKey(KeyEntry(name=SINGLE_KEY, key=api_key))]
        self._keys = {key.digest: key for key in self._single}
        inline = source.lstrip().startswith("[")
        self._file = Path(source) if api_keys is not None and not inline else None
        self._version = ABSENT
        if inline:
            self._take_over(parse_keys(source, "the setting api_keys"))
        elif self._file is not None:
            self._version = version_of(self._file)
            self._take_over(read_keys(self._file))

    def check(self, sent: str) -> ApiKey:
        """The key that a request was sent with, by its digest: how long that takes tells nothing of a key.

        Raises:
            Unauthorized: it is none of the keys.
        """
        key = self._keys.get(digest_of(sent))
        if key is None:
            raise not_accepted("API key", sent)
        return key

    def fair_key(self, key: ApiKey) -> str:
        """The name of a key among whose holders the service is shared; empty where there is one key alone."""
        return key.name if len(self._keys) > 1 else ""

    async def watch(self) -> None:
        """Reads the file again whenever it has changed, until cancelled; while it is broken, the keys stay."""
        while self._file is not None:
            await asyncio.sleep(CHECK_INTERVAL_S)
            version = await asyncio.to_thread(version_of, self._file)  # a mount may hang
            if version == self._version:
                continue
            self._version = version
            try:
                self._take_over(await asyncio.to_thread(read_keys, self._file))
            except AttenuatorError as error:
                log.error("the API keys stay as they were: %s", error)
            else:
                log.info("read the API keys again: %s", ", ".join(key.name for key in self._keys.values()))

    def _take_over(self, entries: list[KeyEntry]) -> None:
        if self._single and any(entry.name == SINGLE_KEY for entry in entries):
            raise AttenuatorError(f"the API keys have the name '{SINGLE_KEY}', which is that of the setting api_key")
        others = {key.digest: "setting api_key" for key in self._single}
        if self._admin is not None:  # whoever may ask could unload every model
            others[self._admin] = "admin key"
        for entry in entries:
            if entry.digest in others:
                raise AttenuatorError(f"the API key '{entry.name}' must differ from the {others[entry.digest]}")
        before = {key.name: key for key in self._keys.values()}
        keys = [*self._single, *(ApiKey(entry, before.get(entry.name)) for entry in entries)]
        self._keys = {key.digest: key for key in keys}


def not_accepted(what: str, sent: str) -> Unauthorized:
    """The error for a key that is not one of those in use."""
    state = "wrong" if sent else "missing"
    return Unauthorized(f"the {what} is {state}, must be sent in the header 'Authorization: Bearer KEY'")


def key_in(authorization: str | None) -> str:
    """The key in a header `Authorization`, empty where it has none, as FastAPI's `HTTPBearer` reads it."""
    scheme, sent = get_authorization_scheme_param(authorization)
    return sent.strip() if scheme.lower() == "bearer" else ""


def version_of(file: Path) -> tuple[int, int, int]:
    """Time, size and inode of a file, which change when it is written or replaced; `ABSENT` of one that is gone."""
    try:
        status = file.stat()
    except OSError:
        return ABSENT
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def read_keys(file: Path) -> list[KeyEntry]:
    """Reads a file of keys.

    Raises:
        AttenuatorError: it cannot be read, or is not a list of keys.
    """
    where = f"the file of API keys {file}"
    try:
        with open(file, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):  # a pipe or a device may never end
                raise AttenuatorError(f"{where} is not a regular file")
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AttenuatorError(f"{where} cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise AttenuatorError(f"{where} has more than {MAX_FILE_BYTES} bytes")
    return parse_keys(content.decode("utf-8", "replace"), where)


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


def digest_of(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
