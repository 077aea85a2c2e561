"""Uvicorn's server over this service's own listener, connections and ends."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from attenuator.serve.edge.connections import Connections, Listener
from attenuator.serve.edge.framing import Hosts
from attenuator.serve.edge.protocol import HttpProtocol, Timeouts
from attenuator.serve.settings import ServeSettings

LAST_ANSWERS_S = 1.0
CLOSE_S = 1.0


class Server(uvicorn.Server):
    """Serves one socket; signals are handled by its caller."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, connections: Connections, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            server_header=False,
        )
        super().__init__(config)
        self._connections = connections
        self._timeouts = Timeouts(settings.header_timeout_ms / 1000, settings.keep_alive_timeout_ms / 1000)
        self._hosts = Hosts(settings.allowed_hosts or ([settings.host] if is_loopback(bound) else ["*"]))
        self._listeners: list[Listener] = []

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Listens; uvicorn would leave accepting to asyncio."""

        def connect() -> HttpProtocol:
            return HttpProtocol(self.config, self.server_state, self._timeouts, self._connections, self._hosts)

        self._listeners = [Listener(bound, self._connections, connect) for bound in sockets or []]
        self.started = True

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Closes the listeners, idle connections at once, and what is left soon after."""
        for listener in self._listeners:
            listener.close()
            await listener.wait_closed()
        for connection in self.server_state.connections.copy():
            connection.shutdown()
        await until(lambda: not self.server_state.connections, CLOSE_S)
        for connection in self.server_state.connections.copy():
            connection.transport.abort()
        await asyncio.sleep(0)

    async def end_requests(self, *, at_once: bool) -> int:
        """Answers 503 to every request that is not answered yet.

        Args:
            at_once: whether those whose work is done are not waited for either, while they are sent.

        Returns:
            How many requests were ended.
        """
        if not at_once:
            await until(lambda: not self._connections.at_work(), LAST_ANSWERS_S)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_ANSWERS_S)
        return len(tasks)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals alone."""
        yield


def is_loopback(bound: socket.socket) -> bool:
    """Whether only programs of this machine can connect."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Returns when a condition holds, or after a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.01)
