"""Limits of arrival: of open connections, and of the bodies of requests.

*Connections.* One may be waiting for its client: idle, or while a header, a body or an answer is being transferred.
Once `max_connections` are open, each new one closes the one that has waited longest, so that silent clients never keep
others out. If the service is working on the requests of all others, one more is open meanwhile.

*Bodies* that are still arriving do not count as requests in progress. They have limits of their own: time and rate for
each, number and bytes for all together. When there are too many, the one that began first is refused, so that stalled
bodies keep nobody out.
"""

import asyncio
import logging
import re
import resource
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from attenuator.errors import AttenuatorError
from attenuator.rate_limited_log import RateLimitedLog
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)

MAX_DEFAULT_CONNECTIONS = 8192  # about 20 KB each, whatever the descriptor limit
SPARE_DESCRIPTORS = 128  # bundles, logs, the event loop, and sockets that are accepted but not yet counted
LEAST_DESCRIPTORS = 32  # modules, the event loop, and the process that checks a bundle
WARNING_INTERVAL_S = 60.0
CLIENT = "client"  # where a request's state holds it
RATE_GRACE_S = 5.0
SMALL_BYTES = 1024
GIVEN_UP = "too many bodies were arriving, and this one had taken the longest: try again"
JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json\s*(;.*)?", re.IGNORECASE)
JSON, BINARY_TYPE = "application/json", "application/octet-stream"
CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)


class Connection(Protocol):
    """What the table needs of a connection."""

    def give_way(self) -> bool:
        """Closes the connection at once; False where its request has arrived meanwhile, which is worked on from now."""


class Connections:
    """The open connections.

    Attributes:
        limit: how many may be open.
        refusal: told status and sentence of every answer to what is not a valid request, whose body it gives.
    """

    def __init__(self, limit: int, refusal: Callable[[int, str], bytes]) -> None:
        self.limit, self.refusal = limit, refusal
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # ordered: the longest wait first
        self._warn = RateLimitedLog(log, logging.WARNING, WARNING_INTERVAL_S)

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._open)

    def at_work(self) -> bool:
        """Whether any connection has a request that is worked on."""
        return len(self._waiting) < len(self._open)

    def add(self, connection: Connection) -> None:
        """Counts a new connection, which waits for its client; others that wait end where too many are open."""
        self._open.add(connection)
        self._waiting[connection] = None
        while len(self._open) > self.limit and (oldest := next(iter(self._waiting))) is not connection:
            self._warn("%d connections are open, the most allowed: the longest idle ones are closed", self.limit)
            if oldest.give_way():
                self.remove(oldest)

    def remove(self, connection: Connection) -> None:
        """Forgets a connection that has closed."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def begin_wait(self, connection: Connection) -> None:
        """From now on the connection waits for its client, and may have to give way."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def end_wait(self, connection: Connection) -> None:
        """The connection's request is complete: it is worked on and never gives way."""
        self._waiting.pop(connection, None)


def raise_descriptor_limit() -> int:
    """Raises the process's soft limit on open files to the hard one; returns what holds then.

    Raises:
        AttenuatorError: nothing can be served with so few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft != resource.RLIM_INFINITY and soft < LEAST_DESCRIPTORS:
        raise AttenuatorError(f"the process may open {soft} files (ulimit -H -n), must be {LEAST_DESCRIPTORS} or more")
    return 2**20 if soft == resource.RLIM_INFINITY else soft


def connection_limit(max_connections: int | None, descriptors: int) -> int:
    """How many connections may be open: the setting, else what descriptors allow, up to `MAX_DEFAULT_CONNECTIONS`.

    Some descriptors are left for everything else.

    Raises:
        AttenuatorError: the setting is more than the descriptors allow.
    """
    most = descriptors - min(SPARE_DESCRIPTORS, descriptors // 2)
    if max_connections is None:
        return min(most, MAX_DEFAULT_CONNECTIONS)
    if max_connections > most:
        raise AttenuatorError(
            f"--max-connections is {max_connections}, must be at most {most}: "
            f"the process may open {descriptors} files (ulimit -H -n)"
        )
    return max_connections


class BodyTooLarge(AttenuatorError):
    """The body is over the limit."""


class BodyTimeout(AttenuatorError):
    """The body did not arrive in time."""


class UnsupportedMediaType(AttenuatorError):
    """The body's Content-Type is not JSON."""


@dataclass(eq=False, slots=True)
class ClientState:
    """Client state of a request: disconnected, body received.

    ASGI's own way is to await the next message, which takes a task of its own for every request, and a time limit for a
    body that mostly arrives with its header.

    Attributes:
        left: whether it has closed the connection, or its connection was closed, before it had its answer.
        when_left: called once, when that happens.
        body: the whole body, once it has arrived, and empty once it has been read; None before.
    """

    left: bool = False
    when_left: Callable[[], object] | None = None
    body: bytearray | None = None

    def leave(self) -> None:
        """The connection is gone."""
        if not self.left:
            self.left = True
            if self.when_left is not None:
                self.when_left()


def client_of(scope: MutableMapping[str, Any]) -> ClientState:
    """The client of the request that an ASGI scope describes."""
    state = scope.setdefault("state", {})
    if CLIENT not in state:
        state[CLIENT] = ClientState()
    client: ClientState = state[CLIENT]
    return client


@dataclass(eq=False, slots=True)
class Arriving:
    """A body of which so many bytes have arrived; its time-out ends the wait for the others."""

    timeout: asyncio.Timeout
    size: int = 0


class Bodies:
    """All bodies that are arriving."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._arriving: dict[Arriving, None] = {}  # ordered: the first to begin comes first
        self._bytes = 0
        self._turn = asyncio.Lock()  # those who wait get it in the order in which they came

    async def read(self, request: Request, types: Collection[str] | None = ()) -> bytes:
        """Reads a request's body; of larger ones a single one in each round of the event loop.

        What reading and checking such a request takes is not cut into pieces: in turn, they let short ones pass.

        Args:
            request: the request.
            types: that it may have besides JSON; an empty one where it may have none. None: whatever it has.

        Raises:
            UnsupportedMediaType: its Content-Type is not JSON.
            BodyTooLarge: announced or found to be over the limit.
            BodyTimeout: it did not arrive in time or at the least rate, or was given up in favour of others.
            ClientDisconnect: the client left before the end.
        """
        if types is not None:
            check_content_type(request, types)
        limit = self._settings.max_body_bytes
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        client = client_of(request.scope)
        if client.body is None or client.left:
            whole = await self._receive(request, limit)
        elif len(client.body) > limit:
            raise _too_large(limit)
        else:
            whole = bytes(client.body)
            client.body.clear()
        if len(whole) > SMALL_BYTES:
            async with self._turn:
                await asyncio.sleep(0)
        return whole

    async def _receive(self, request: Request, limit: int) -> bytes:
        """As `read`, a body that is still arriving."""
        started_s = asyncio.get_running_loop().time()
        arriving = Arriving(asyncio.timeout_at(self._deadline_s(started_s, 0)))
        self._arriving[arriving] = None
        parts: list[bytes] = []
        try:
            async with arriving.timeout:
                self._keep_limits()
                async for part in request.stream():
                    parts.append(part)
                    arriving.size += len(part)
                    if arriving in self._arriving:
                        self._bytes += len(part)
                        self._keep_limits()
                    if arriving.size > limit:
                        raise _too_large(limit)
                    if arriving in self._arriving and not arriving.timeout.expired():
                        arriving.timeout.reschedule(self._deadline_s(started_s, arriving.size))
        except TimeoutError:
            raise BodyTimeout(self._late(arriving.size) if arriving in self._arriving else GIVEN_UP) from None
        finally:
            self._forget(arriving)
        return b"".join(parts)

    def _deadline_s(self, started_s: float, size: int) -> float:
        """The time at which a body is too late, if no more of it arrives."""
        end_s = self._settings.body_timeout_ms / 1000
        rate = self._settings.min_body_bytes_per_s
        return started_s + (min(end_s, RATE_GRACE_S + size / rate) if rate else end_s)

    def _late(self, size: int) -> str:
        """Why a body of which so many bytes have arrived is too late."""
        if self._deadline_s(0.0, size) < self._settings.body_timeout_ms / 1000:
            return f"the body arrived too slowly, must arrive at {self._settings.min_body_bytes_per_s} bytes/s or more"
        return f"the body did not arrive within {self._settings.body_timeout_ms:g} ms"

    def _keep_limits(self) -> None:
        """Refuses bodies, the one that began first before the others, until number and bytes are within the limits."""
        most, most_bytes = self._settings.max_arriving_bodies, self._settings.max_arriving_bytes
        while len(self._arriving) > most or self._bytes > most_bytes:
            oldest = next(iter(self._arriving))
            self._forget(oldest)
            if not oldest.timeout.expired():
                oldest.timeout.reschedule(asyncio.get_running_loop().time())

    def _forget(self, arriving: Arriving) -> None:
        """Counts a body no longer, which has arrived or is given up."""
        if arriving in self._arriving:
            del self._arriving[arriving]
            self._bytes -= arriving.size


def check_content_type(request: Request, types: Collection[str]) -> None:
    """Refuses a Content-Type other than JSON in UTF-8 and those of `types`, and a body without one.

    Web pages may send those anywhere without asking; for JSON, browsers ask the service first (CORS).

    Raises:
        UnsupportedMediaType: names the header and how to send it.
    """
    values = request.headers.getlist("content-type")
    for value in values or [""]:
        charset = CHARSET.search(value)
        if value == JSON or value.strip().lower() in types:
            continue
        if not JSON_TYPE.fullmatch(value.strip()) or (charset and charset[1].lower() not in ("utf-8", "utf8")):
            what = f"is '{value[:80]}'" if values else "is missing"
            raise UnsupportedMediaType(
                f"the Content-Type {what}, must be application/json in UTF-8: "
                "curl sends it with -H 'Content-Type: application/json'"
            )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is too large, must have at most {limit} bytes")
