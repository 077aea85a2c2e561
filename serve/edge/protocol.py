"""HTTP/1.1 on one connection: uvicorn's protocol with time limits, half-closed clients and errors in JSON."""

import asyncio
import contextlib
import enum
import os
from collections.abc import Mapping
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from attenuator.serve.edge.arrivals import JSON, Connections, client_of
from attenuator.serve.edge.framing import BODY, HEADER, Hosts, RequestReader

ARRIVED_BYTES, ARRIVED_READS = 64 * 2**10, 16  # read of a connection that gives way: at a time, and how often
MAX_HELD_BYTES = 64 * 2**10
FIRST_PROBE_S = 0.2  # the next ones follow after twice as long each


class Phase(enum.Enum):
    """What a connection waits for."""

    IDLE = "the next request"
    HEADER = "a request's header"
    BODY = "a request's body"
    WORK = "the answer, which the service makes"
    WRITE = "the client to read the answer"
    DISCARD = "the rest of a body that was answered early"
    LINGER = "the client's end of a closed connection"


# The longest waits in seconds; settings have those of IDLE and HEADER, `arrivals` that of BODY, and WORK has none here.
LIMITS_S = {Phase.WRITE: 30.0, Phase.DISCARD: 5.0, Phase.LINGER: 5.0}


class LingeringTransport(asyncio.Transport):
    """A transport that sends an answer's head and body together, and lets the protocol close it.

    A client that is still sending must get its answer first.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "HttpProtocol") -> None:
        super().__init__()
        self.real = transport
        self._protocol = protocol
        self._held = b""
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.abort = transport.abort  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends; what is written before an answer's end is held while it is small: one packet costs less than two."""
        self._held += data
        current = self._protocol.current
        if current is None or not current.response_started or len(self._held) > MAX_HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends what is held."""
        held, self._held = self._held, b""
        self.real.write(held)

    def is_closing(self) -> bool:
        """Whether the connection takes no more answers."""
        return self._protocol.phase is Phase.LINGER or self.real.is_closing()

    def close(self) -> None:
        """Closes once the client has read what was written."""
        self._protocol.close()


class HttpProtocol(RequestReader):
    """One connection.

    Attributes:
        phase: what it waits for.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits_s: Mapping[Phase, float],
        connections: Connections,
        hosts: Hosts,
    ) -> None:
        super().__init__(config, server_state, hosts)
        self.phase = Phase.IDLE
        self._table = connections
        self._limits_s = limits_s
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str] | None = None  # status and reason; nothing is read any more
        self._half_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is set up."""
        self._real = cast(asyncio.Transport, transport)  # uvloop's has no such base
        self._lingering = LingeringTransport(self._real, self)
        super().connection_made(self._lingering)
        self._table.add(self)
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        if self._timer is not None:
            self._timer.cancel()
        self._table.remove(self)
        self._client_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self.parse(data)
        self._update()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it has left, or has closed its half and waits for the answer.

        Gives whether the connection stays open for the answer.
        """
        if self.transport.is_closing():
            return False
        if not self._half_closed:
            self._half_closed = True
            self.loop.call_later(FIRST_PROBE_S, self._probe_client, FIRST_PROBE_S)
        if self._refusal is None and self.unfinished:
            what = f"the request's {self.unfinished} is incomplete"
            self.refuse(400, f"{what}: the client closed the connection while sending it")
        self._update()
        return not self.transport.is_closing()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._update()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._update()

    def on_response_complete(self) -> None:
        """An answer was sent: the next request may begin."""
        self.current = None
        if self.transport.is_closing():
            return
        self._lingering.flush()
        if self.pipeline:
            self.current, app = self.pipeline.pop()
            self._start_asgi_task(self.current, app)
        elif self._refusal is not None:
            self._send_refusal(*self._refusal)
        elif self.unfinished == BODY and self.expect_100_continue:
            self.close()  # the client may or may not send the body, so the next request's start cannot be known
        if not self.pipeline:
            self.flow.resume_reading()
        self._update()

    def shutdown(self) -> None:
        """The service stops: closes now, or after the answer under way."""
        if self.current is None:
            self.close()
        else:
            self.current.keep_alive = False

    def close(self) -> None:
        """Closes once what was written has been read.

        If a connection is closed while the client is sending, the kernel resets it and the client loses its answer. So
        what it still sends is read and discarded, for some seconds.
        """
        if self.transport.is_closing():
            return
        self._lingering.flush()
        sends = (self._refusal is not None or self.unfinished == BODY) and not self._half_closed
        self._enter(Phase.LINGER)
        if sends:
            self.flow.resume_reading()
            self._real.write_eof()
        else:
            self._real.close()

    def give_way(self) -> bool:
        """Closes at once, in favour of a new connection, and gives True; False where its request has arrived meanwhile.

        What has arrived is read first: the kernel resets a connection that is closed before, and the client loses its
        answer.
        """
        if not self.transport.is_closing() and (arrived := self._read_arrived()):
            self.data_received(arrived)
        if self.phase is Phase.WORK:
            return False
        if self.phase is Phase.BODY:
            self.refuse(503, "too many connections are open, and this request's body had made no progress for longest")
            for _ in range(ARRIVED_READS):
                if not self._read_arrived():
                    break
        self.transport.abort()
        return True

    def _read_arrived(self) -> bytes:
        """Bytes that the kernel holds; none where there are none or the connection is gone."""
        with contextlib.suppress(OSError):
            return os.read(self.transport.get_extra_info("socket").fileno(), ARRIVED_BYTES)
        return b""

    def refuse(self, status: int, reason: str) -> None:
        """Answers what was received last with an error of the protocol, and closes.

        The requests before it are answered first. Nothing is sent where its own answer has begun.
        """
        self._refusal = status, reason
        if self.current is None or (self.current is self.cycle and self.unfinished == BODY):
            self._send_refusal(status, reason)
        elif self.pipeline and self.unfinished == BODY:
            self.pipeline.popleft()  # the request that is refused; the last one comes first

    def _send_refusal(self, status: int, reason: str) -> None:
        if not (self.unfinished == BODY and self.cycle.response_started):
            content = self._table.refusal(status, reason[:200])
            fields = f"Content-Type: {JSON}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            head_only = self.unfinished != HEADER and self.parser.get_method() == b"HEAD"
            self.transport.write(STATUS_LINE[status] + fields.encode() + (b"" if head_only else content))
        if self.current is not None:
            self.current.scope["state"]["refused"] = status
            self._client_left()
        self.close()

    def _client_left(self) -> None:
        """Tells whoever works on a request that is not answered yet."""
        if self.current is not None:
            self.current.disconnected = True
            self.current.message_event.set()
            client_of(cast("dict[str, Any]", self.current.scope)).leave()

    def _update(self) -> None:
        """Enters the phase that the connection is in now."""
        if self.transport.is_closing():
            return
        if self.flow.write_paused:
            phase = Phase.WRITE
        elif self.current is not None:
            phase = Phase.BODY if self.current.more_body else Phase.WORK
        elif self.unfinished == BODY:
            phase = Phase.DISCARD
        else:
            phase = Phase.HEADER if self.unfinished or self.cycle is None else Phase.IDLE
        if phase is not self.phase:
            self._enter(phase)
        if self._half_closed and phase in (Phase.IDLE, Phase.HEADER):
            self.close()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        if self._timer is not None:
            self._timer.cancel()
        limit_s = self._limits_s.get(phase)
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._time_out)
        if phase is Phase.WORK:
            self._table.end_wait(self)
            if not self.pipeline:
                self.flow.resume_reading()  # a large body has paused it, and only reading tells that the client leaves
        else:
            self._table.begin_wait(self)

    def _time_out(self) -> None:
        if self.phase is Phase.HEADER and self.unfinished:
            self.refuse(408, f"the header did not arrive within {self._limits_s[Phase.HEADER] * 1000:g} ms")
        elif self.phase in (Phase.IDLE, Phase.HEADER):
            self.close()
        else:
            self.transport.abort()

    def _probe_client(self, after_s: float) -> None:
        """Finds out whether a client that has closed its half is still there.

        Only sending tells: the second write to a client that has left fails. HTTP/1.1 allows interim answers; most
        requests are answered before the first.
        """
        current = self.current
        if self.transport.is_closing():
            return
        if self.phase is Phase.WORK and current is not None and current.scope["http_version"] == "1.1":
            if not current.response_started:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(2 * after_s, self._probe_client, 2 * after_s)
