"""HTTP/1.1 on one connection: uvicorn's protocol with time limits, half-closed clients and errors in JSON."""

import asyncio
import contextlib
import enum
import os
import socket
from dataclasses import dataclass
from typing import Any, cast

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from attenuator.serve.edge.bodies import JSON, client_of
from attenuator.serve.edge.connections import Client, Connections
from attenuator.serve.edge.framing import Hosts, RequestReader

LINGER_S = 5.0
LINGER_BYTES = 32 * 2**20
WRITE_TIMEOUT_S = 30.0
HALF_CLOSE_CHECK_S = 0.5
MAX_HELD_BYTES = 64 * 2**10
ARRIVED_BYTES, ARRIVED_READS = 64 * 2**10, 16  # read of a connection that gives way: at a time, and how often
RESET_CHECK_S = 0.05  # first check after the interim answer; the next ones take HALF_CLOSE_CHECK_S


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Longest waits for a client, in seconds.

    Attributes:
        header_s: for a request's header, from the connection's start or the header's first byte.
        keep_alive_s: for the next request.
    """

    header_s: float
    keep_alive_s: float


class Phase(enum.Enum):
    """What a connection waits for."""

    IDLE = "the next request"
    HEADER = "a request's header"
    BODY = "a request's body"
    WORK = "the answer, which the service makes"
    WRITE = "the client to read the answer"
    DISCARD = "the rest of a body that was answered early"
    LINGER = "the client's end of a closed connection"


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
        if not self._protocol.amid_answer or len(self._held) > MAX_HELD_BYTES:
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


class HttpProtocol(RequestReader, Client):
    """One connection.

    Attributes:
        phase: what it waits for.
        current: the request that is being answered, or was answered last.
    """

    def __init__(
        self, config: Config, server_state: ServerState, timeouts: Timeouts, connections: Connections, hosts: Hosts
    ) -> None:
        super().__init__(config, server_state, hosts)
        self.phase = Phase.IDLE
        self.current: RequestResponseCycle | None = None
        self._table = connections
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str] | None = None  # status and reason; nothing is read any more
        self._half_closed = False
        self._probed = False
        self._discarded = 0
        self._limits_s = {
            Phase.IDLE: timeouts.keep_alive_s,
            Phase.HEADER: timeouts.header_s,
            Phase.WRITE: WRITE_TIMEOUT_S,
            Phase.DISCARD: LINGER_S,
            Phase.LINGER: LINGER_S,
        }

    @property
    def unanswered(self) -> RequestResponseCycle | None:
        """The request that is being answered; None where there is none."""
        return None if self.current is None or self.current.response_complete else self.current

    @property
    def amid_answer(self) -> bool:
        """Whether an answer was begun and more of it follows."""
        return (unanswered := self.unanswered) is not None and unanswered.response_started

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is set up."""
        self._real = cast(asyncio.Transport, transport)  # uvloop's has no such base
        self._lingering = LingeringTransport(self._real, self)
        super().connection_made(self._lingering)
        self._enter(Phase.HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._set_timer(None)
        self._table.remove(self)
        self._client_left()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._refusal is not None or self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
            return
        self.parse(data)
        self._update()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.current = cycle
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it has left, or has closed its half and waits for the answer.

        Returns:
            Whether the connection stays open for the answer.
        """
        if self.transport.is_closing():
            return False
        if not self._half_closed:
            self._half_closed = True
            self.loop.call_later(HALF_CLOSE_CHECK_S, self._probe_client)
        if self._refusal is None and (self.header_begun or self.body_missing):
            part = "header" if self.header_begun else "body"
            self.refuse(400, f"the request's {part} is incomplete: the client closed the connection while sending it")
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
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._lingering.flush()
        next_one = self.pipeline.pop() if self.pipeline else None
        if not self.pipeline:
            self.flow.resume_reading()
        if next_one is not None:
            self._start_asgi_task(*next_one)
        elif self._refusal is not None:
            self._send_refusal(*self._refusal)
        elif self.body_missing and any(name == b"expect" for name, _ in self.headers):
            self.close()  # the client may or may not send the body, so the next request's start cannot be known
        self._update()

    def shutdown(self) -> None:
        """The service stops: closes now, or after the answer under way."""
        if (unanswered := self.unanswered) is None:
            self.close()
        else:
            unanswered.keep_alive = False

    def close(self) -> None:
        """Closes once what was written has been read.

        If a connection is closed while the client is sending, the kernel resets it and the client loses its answer. So
        what it still sends is read and discarded, within limits.
        """
        if self.transport.is_closing():
            return
        self._lingering.flush()
        sends = (self._refusal is not None or self.body_missing) and not self._half_closed
        self._enter(Phase.LINGER)
        if sends:
            self.flow.resume_reading()
            self._real.write_eof()
        else:
            self._real.close()

    def give_way(self) -> bool:
        """Closes at once, in favour of a new connection, but for one whose request has arrived meanwhile.

        What has arrived is read first: the kernel resets a connection that is closed before, and the client loses its
        answer.
        """
        if self.transport is None:
            return False
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
        if self.unanswered is None or (self.current is self.cycle and self.body_missing):
            self._send_refusal(status, reason)
        elif self.pipeline and self.body_missing:
            self.pipeline.popleft()  # the request that is refused; the last one comes first

    def _send_refusal(self, status: int, reason: str) -> None:
        if not (self.body_missing and self.cycle.response_started):
            content = self._table.refusal(status, reason[:200])
            fields = f"Content-Type: {JSON}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            head_only = not self.header_begun and self.parser.get_method() == b"HEAD"
            self.transport.write(STATUS_LINE[status] + fields.encode() + (b"" if head_only else content))
        if (unanswered := self.unanswered) is not None:
            unanswered.scope["state"]["refused"] = status
            self._client_left()
        self.close()

    def _client_left(self) -> None:
        """Tells whoever works on a request that is not answered yet."""
        if (unanswered := self.unanswered) is not None:
            unanswered.disconnected = True
            unanswered.message_event.set()
            client_of(cast(dict[str, Any], unanswered.scope)).leave()

    def _update(self) -> None:
        """Enters the phase that the connection is in now."""
        if self.transport.is_closing():
            return
        unanswered = self.unanswered
        if unanswered is not None and not unanswered.more_body:
            client_of(cast("dict[str, Any]", unanswered.scope)).body = unanswered.body
        self._enter(self._current_phase())
        if self._half_closed and self.phase in (Phase.IDLE, Phase.HEADER):
            self.close()

    def _current_phase(self) -> Phase:
        if self.flow.write_paused:
            return Phase.WRITE
        if (unanswered := self.unanswered) is not None:
            return Phase.BODY if unanswered.more_body else Phase.WORK
        if self.body_missing:
            return Phase.DISCARD
        return Phase.HEADER if self.current is None or self.header_begun else Phase.IDLE

    def _enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        self.phase = phase
        self._set_timer(self._limits_s.get(phase))
        if phase is Phase.WORK:
            self._table.end_wait(self)
            if not self.pipeline:
                self.flow.resume_reading()  # a large body has paused it, and only reading tells that the client leaves
        else:
            self._table.begin_wait(self)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self.phase is Phase.IDLE or (self.phase is Phase.HEADER and not self.header_begun):
            self.close()
        elif self.phase is Phase.HEADER:
            self.refuse(408, f"the header did not arrive within {self._limits_s[Phase.HEADER] * 1000:g} ms")
        else:
            self.transport.abort()

    def _probe_client(self) -> None:
        """Finds out whether a client that has closed its half is still there.

        Only sending something tells: a client that has left answers with a reset. HTTP/1.1 allows an interim answer;
        most requests are answered before the first check.
        """
        if self.transport.is_closing() or self.phase is not Phase.WORK:
            return
        assert self.current is not None
        if not self._probed and not self.current.response_started and self.current.scope["http_version"] == "1.1":
            self._probed = True
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(RESET_CHECK_S, self._probe_client)
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self.loop.call_later(HALF_CLOSE_CHECK_S, self._probe_client)
