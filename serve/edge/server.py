"""Uvicorn's server with this service's own connections and end."""

import asyncio
import contextlib
import functools
import ipaddress
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from attenuator.serve.edge.arrivals import Connections
from attenuator.serve.edge.framing import Hosts
from attenuator.serve.edge.protocol import LIMITS_S, HttpProtocol, Phase
from attenuator.serve.settings import ServeSettings

LAST_ANSWERS_S = 1.0
CLOSE_S = 1.0
LISTENERS = 8
ACCEPT_BATCH = 2  # that each of asyncio's own accepts in a round, before the limit on connections is looked at
KERNEL_QUEUE = 2048


class Server(uvicorn.Server):
    """Serves one socket; signals are handled by its caller."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, connections: Connections, bound: socket.socket) -> None:
        connect = functools.partial(
            HttpProtocol,
            limits_s={
                **LIMITS_S,
                Phase.IDLE: settings.keep_alive_timeout_ms / 1000,
                Phase.HEADER: settings.header_timeout_ms / 1000,
            },
            connections=connections,
            hosts=Hosts(settings.allowed_hosts or ([settings.host] if is_loopback(bound) else ["*"])),
        )
        config = uvicorn.Config(
            app,
            http=cast("type[HttpProtocol]", connect),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            server_header=False,
            backlog=ACCEPT_BATCH,
        )
        super().__init__(config)
        self._connections = connections
        self._bound = bound

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, with several listeners on the socket: uvloop's accept one connection in a round of the loop."""
        await super().startup([self._bound.dup() for _ in range(LISTENERS)])
        self._bound.listen(KERNEL_QUEUE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the listeners, idle connections at once, and what is left soon after.

        Uvicorn would log an error where a client has not read its answer by then.
        """
        for listener in self.servers:
            listener.close()
        self._bound.close()
        for connection in self.server_state.connections.copy():
            connection.shutdown()
        await until(lambda: not self.server_state.connections, CLOSE_S)

    async def end_requests(self, *, at_once: bool) -> int:
        """Answers 503 to every request that is not answered yet; gives how many there were.

        Those whose work is done are waited for while they are sent, unless it has to be `at_once`.
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
