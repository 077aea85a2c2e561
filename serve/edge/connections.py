"""The open connections: a limit on their number, and which one closes for a new one.

A connection may be waiting for its client: idle, or while a header, a body or an answer is being transferred. Once
`max_connections` are open, each new connection closes the one that has waited longest, so that silent clients never
keep others out. If the service is working on the requests of all others, one more is open meanwhile.
"""

import logging
import resource
from collections.abc import Callable
from typing import Protocol

from attenuator.errors import AttenuatorError
from attenuator.serve.observe.events import RateLimitedLog

log = logging.getLogger(__name__)

MAX_DEFAULT_CONNECTIONS = 8192  # about 20 KB each, whatever the descriptor limit
SPARE_DESCRIPTORS = 128  # bundles, logs, the event loop, and sockets that are accepted but not yet counted
LEAST_DESCRIPTORS = 32  # modules, the event loop, and the process that checks a bundle
WARNING_INTERVAL_S = 60.0


class Client(Protocol):
    """What the table needs of a connection."""

    def give_way(self) -> bool:
        """Closes the connection at once; False where its request has arrived meanwhile, which is worked on from now."""


class Connections:
    """The open connections.

    Attributes:
        limit: how many may be open.
        refusal: told status and sentence of every answer to what is not a valid request, whose body it gives.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refusal: Callable[[int, str], bytes] = lambda status, sentence: b"{}"
        self._open: set[Client] = set()
        self._waiting: dict[Client, None] = {}  # ordered: the longest wait first
        self._warn = RateLimitedLog(log, logging.WARNING, WARNING_INTERVAL_S)

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._open)

    def at_work(self) -> bool:
        """Whether any connection has a request that is worked on."""
        return len(self._waiting) < len(self._open)

    def add(self, client: Client) -> None:
        """Counts a new connection, which waits for its client; others that wait end where too many are open."""
        self._open.add(client)
        self._waiting[client] = None
        while len(self._open) > self.limit and (oldest := next(iter(self._waiting))) is not client:
            self._warn("%d connections are open, the most allowed: the longest idle ones are closed", self.limit)
            if oldest.give_way():
                self.remove(oldest)

    def remove(self, client: Client) -> None:
        """Forgets a connection that has closed."""
        self._open.discard(client)
        self._waiting.pop(client, None)

    def begin_wait(self, client: Client) -> None:
        """From now on the connection waits for its client, and may have to give way."""
        if client in self._open:
            self._waiting.pop(client, None)
            self._waiting[client] = None

    def end_wait(self, client: Client) -> None:
        """The connection's request is complete: it is worked on and never gives way."""
        self._waiting.pop(client, None)


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
