"""Accepts connections, keeps their number within the limit, and chooses which one to close for a new one.

A connection may be waiting for its client: idle, or while a header, a body or an answer is being transferred. Once
`max_connections` are open, each new connection closes the one that has waited longest, so that silent clients never
keep others out. If the service is working on the requests of all connections, new ones wait in the kernel's queue.
"""

import asyncio
import logging
import resource
import socket
from collections.abc import Callable

from attenuator.errors import AttenuatorError
from attenuator.serve.observe.events import RateLimitedLog

log = logging.getLogger(__name__)

MAX_DEFAULT_CONNECTIONS = 8192  # about 20 KB each, whatever the descriptor limit
SPARE_DESCRIPTORS = 128  # bundles, logs, the event loop, and sockets that are accepted but not yet counted
LEAST_DESCRIPTORS = 32  # modules, the event loop, and the process that checks a bundle
ACCEPT_BATCH = 16  # connections accepted at a time; those closed for them free their descriptors only afterwards
ACCEPT_RETRY_S = 0.1
FREED_DESCRIPTORS = 2 * ACCEPT_BATCH
LOWER_LIMIT_S = 60.0
WARNING_INTERVAL_S = 60.0


class Client(asyncio.Protocol):
    """What the table needs of a connection."""

    def give_way(self) -> bool:
        """Closes the connection at once; False where it is not set up yet, or does not wait for its client any more."""
        raise NotImplementedError


class Connections:
    """The open connections.

    Attributes:
        limit: how many may be open.
        when_room: called when a connection closes or begins to wait for its client.
        refusal: told status and sentence of every answer to what is not a valid request, whose body it gives.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._full_limit = limit
        self.when_room: Callable[[], None] = lambda: None
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
        """Counts a new connection, which waits for its client."""
        self._open.add(client)
        self._waiting[client] = None

    def remove(self, client: Client) -> None:
        """Forgets a connection that has closed."""
        self._open.discard(client)
        self._waiting.pop(client, None)
        self.when_room()

    def begin_wait(self, client: Client) -> None:
        """From now on the connection waits for its client, and may have to give way."""
        if client in self._open:
            self._waiting.pop(client, None)
            self._waiting[client] = None
            self.when_room()

    def end_wait(self, client: Client) -> None:
        """The connection's request is complete: it is worked on and never gives way."""
        self._waiting.pop(client, None)

    def has_room(self) -> bool:
        """Whether one more connection may be accepted, with another one giving way to it if necessary."""
        return len(self._open) < self.limit or (len(self._open) == self.limit and bool(self._waiting))

    def shrink(self) -> None:
        """Lets the connections that have waited longest give way until the limit is kept."""
        while len(self._open) > self.limit and self.close_longest_wait():
            self._warn("%d connections are open, the most allowed: the longest idle ones are closed", self.limit)

    def lower_limit(self) -> None:
        """Lowers the limit for a minute, because descriptors have run out before it was reached."""
        lower = max(1, len(self._open) - FREED_DESCRIPTORS, len(self._open) // 2)
        if lower < self.limit:
            asyncio.get_running_loop().call_later(LOWER_LIMIT_S, setattr, self, "limit", self._full_limit)
            self.limit = lower
        self.shrink()

    def close_longest_wait(self) -> bool:
        """Closes the connection that has waited longest for its client; False where none can be closed."""
        while (oldest := next(iter(self._waiting), None)) is not None:
            if oldest.give_way():
                self.remove(oldest)
                return True
            if oldest in self._waiting:  # it is not set up yet
                return False
        return False


class Listener:
    """Accepts connections as long as there is room.

    asyncio's own accept loop tries again thousands of times, with a traceback each, when descriptors run out.
    """

    def __init__(self, bound: socket.socket, connections: Connections, make_client: Callable[[], Client]) -> None:
        self._socket = bound
        self._connections = connections
        self._make_client = make_client
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[object]] = set()
        self._listening = False
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._warn = RateLimitedLog(log, logging.WARNING, WARNING_INTERVAL_S)
        bound.setblocking(False)
        connections.when_room = self._resume
        self._resume()

    def close(self) -> None:
        """Accepts no more connections and closes the socket."""
        self._closed = True
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()

    async def wait_closed(self) -> None:
        """Waits until every accepted socket has become a connection or has failed to."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _pause(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._socket)

    def _resume(self) -> None:
        if not self._listening and not self._closed and self._retry is None:
            self._listening = True
            self._loop.add_reader(self._socket, self._accept)

    def _retry_now(self) -> None:
        self._retry = None
        self._resume()

    def _accept(self) -> None:
        self._connections.shrink()  # connections accepted last time could not yet be closed then
        for _ in range(ACCEPT_BATCH):
            if not self._connections.has_room():
                self._pause()  # until a connection closes or waits
                return
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # descriptors or memory have run out; the peer stays in the kernel's queue
                self._warn("no connection can be accepted: %s", error.strerror or error)
                self._pause()
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._retry_now)
                self._connections.lower_limit()
                return
            self._connect(accepted)
            self._connections.shrink()

    def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        client = self._make_client()
        self._connections.add(client)
        task: asyncio.Task[object] = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: client, accepted)
        )
        self._connecting.add(task)

        def connected(task: asyncio.Task[object]) -> None:
            self._connecting.discard(task)
            if task.cancelled() or task.exception() is not None:
                accepted.close()
                self._connections.remove(client)

        task.add_done_callback(connected)


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
    """How many connections may be open.

    Args:
        max_connections: the setting; None takes what the descriptors allow, up to `MAX_DEFAULT_CONNECTIONS`.
        descriptors: how many files the process may open.

    Returns:
        The limit, which leaves descriptors for everything else.

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
