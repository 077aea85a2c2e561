"""Uvicorn's server with this service's own connections and end, its socket and its event loop."""

import asyncio
import contextlib
import errno
import functools
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from attenuator.errors import AttenuatorError
from attenuator.serve.edge.arrivals import Connections
from attenuator.serve.edge.framing import Hosts
from attenuator.serve.edge.protocol import LIMITS_S, HttpProtocol, Phase
from attenuator.serve.settings import ServeSettings

log = logging.getLogger("attenuator.serve")
LAST_ANSWERS_S = 1.0
CLOSE_S = 1.0
LISTENERS = 8
ACCEPT_BATCH = 2  # that each of asyncio's own accepts in a round, before the limit on connections is looked at
KERNEL_QUEUE = 2048
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


def listen(host: str, port: int) -> socket.socket:
    """Binds the address, so that a taken port gives an error of one sentence.

    Raises:
        AttenuatorError: the address cannot be bound.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as unless_bound:
            # The protocol is named because asyncio turns Nagle's delay off only where it is.
            bound = unless_bound.enter_context(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(KERNEL_QUEUE)
            unless_bound.pop_all()
    except OSError as error:
        hint = ", choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise AttenuatorError(f"cannot listen on {address(host, port)}: {error.strerror or error}{hint}") from None
    return bound


def address(host: str, port: int) -> str:
    """Host and port as an address has them: an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: uvloop, which takes less time for each event, or asyncio where it is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    make: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return make


def end_in_time(limit_s: float) -> None:
    """Has the process end so long after a signal, also where a request that the event loop runs itself hangs.

    A thread reads the signals first, and hands them on to the event loop. Call it when that has its handlers.
    """

    def end() -> None:
        # What hangs may hold the log's lock, or whoever reads the log may have stopped: neither is waited for.
        sentence = "the event loop has not ended within %g s of a signal: the process ends without it"
        last_words = threading.Thread(target=log.critical, args=(sentence, limit_s), daemon=True)
        last_words.start()
        last_words.join(1)
        os._exit(1)

    def forward() -> None:
        timing = False
        while received := os.read(heard, 1):
            if received[0] in SIGNALS and not timing:
                timing = True
                timer.start()
            with contextlib.suppress(OSError):  # a loop whose socket is full or closed needs no more of them
                os.write(loop_fd, received)

    heard, told = os.pipe()
    os.set_blocking(told, False)
    loop_fd = signal.set_wakeup_fd(told)
    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    threading.Thread(target=forward, name="signals", daemon=True).start()


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Returns when a condition holds, or after a time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.01)
