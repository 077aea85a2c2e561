"""HTTP/1.1 on one connection: uvicorn's h11 protocol with time limits, half-closed clients and errors in JSON."""

import asyncio
import contextlib
import enum
import os
import socket
from dataclasses import dataclass
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from attenuator.serve import accesslog
from attenuator.serve.connections import Client, Connections
from attenuator.serve.errors import JSON, MALFORMED_REQUEST, PROTOCOL_KINDS, error_body
from attenuator.serve.framing import Connection
from attenuator.serve.presence import presence_of
from attenuator.serve.usual import METHOD, UsualCycle, UsualRequest, read_usual

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
        if self._protocol.conn.our_state is not h11.SEND_BODY or len(self._held) > MAX_HELD_BYTES:
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


class HttpProtocol(H11Protocol, Client):
    """One connection.

    Attributes:
        phase: what it waits for.
    """

    def __init__(self, config: Config, server_state: ServerState, timeouts: Timeouts, connections: Connections) -> None:
        super().__init__(config, server_state, {})
        self.conn: Connection = Connection()
        self.phase = Phase.IDLE
        self._table = connections
        self._timer: asyncio.TimerHandle | None = None
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
        if self.transport.is_closing():
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.abort()
            return
        usual = read_usual(data) if self.conn.at_rest else None
        if usual is None:
            self.conn.receive_data(data)
            self.handle_events()
        else:
            self._begin(usual)
        self._update()

    def _begin(self, request: UsualRequest) -> None:
        """As `handle_events` begins what h11 has read."""
        self.conn.begin_usual(METHOD)
        self.cycle = UsualCycle(self, request)
        self.scope, self.headers = self.cycle.scope, request.headers
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it has left, or has closed its half and waits for the answer.

        Returns:
            Whether the connection stays open for the answer.
        """
        if self.transport.is_closing():
            return False
        self.conn.receive_data(b"")
        if not self._half_closed:
            self._half_closed = True
            self.loop.call_later(HALF_CLOSE_CHECK_S, self._probe_client)
        if self._header_begun():
            self.refuse(400, "the request's header is incomplete: the client closed the connection while sending it")
        else:
            self.handle_events()
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
        self.flow.resume_reading()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
            self.conn.start_next_cycle()
            self.handle_events()
        elif any(name == b"expect" for name, _ in self.scope["headers"]):
            self.close()  # the client may or may not send the body, so the next request's start cannot be known
        self._update()

    def shutdown(self) -> None:
        """The service stops: closes now, or after the answer under way."""
        if self.cycle is None or self.cycle.response_complete:
            self.close()
        else:
            self.cycle.keep_alive = False

    def close(self) -> None:
        """Closes once what was written has been read.

        If a connection is closed while the client is sending, the kernel resets it and the client loses its answer. So
        what it still sends is read and discarded, within limits.
        """
        if self.transport.is_closing():
            return
        self._lingering.flush()
        sends = self.conn.their_state in (h11.SEND_BODY, h11.ERROR) and not self._half_closed
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
        """Answers with an error of the protocol, if an answer can still be sent, and closes."""
        cycle = self.cycle
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            kind = PROTOCOL_KINDS.get(status, MALFORMED_REQUEST)
            content = error_body(f"{reason[:200]}", kind)
            headers = [("Content-Type", JSON), ("Content-Length", str(len(content))), ("Connection", "close")]
            response = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
            output = self.conn.send(response)
            if self.conn.method != b"HEAD":
                output += self.conn.send(h11.Data(data=content))
                output += self.conn.send(h11.EndOfMessage())
            self.transport.write(output)
            accesslog.refused(status, kind)
            self._table.refused(kind)
        if cycle is not None and not cycle.response_complete:
            cycle.scope["state"]["refused"] = status
            cycle.disconnected = True
            cycle.message_event.set()
            self._client_left()
        self.close()

    def _client_left(self) -> None:
        """Tells whoever works on a request that is not answered yet."""
        if self.cycle is not None and not self.cycle.response_complete:
            presence_of(cast(dict[str, Any], self.cycle.scope)).leave()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when h11 refuses the input."""
        error = self.conn.error
        assert error is not None
        self.refuse(error.error_status_hint, f"the request is not valid HTTP: {error}")

    def _should_upgrade(self) -> bool:
        return False  # a server may ignore Upgrade: the request is answered like any other

    def _update(self) -> None:
        """Enters the phase that the connection is in now."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            presence_of(cast("dict[str, Any]", cycle.scope)).body = cycle.body
        self._enter(self._current_phase())
        if self._half_closed and self.phase in (Phase.IDLE, Phase.HEADER):
            self.close()

    def _current_phase(self) -> Phase:
        cycle = self.cycle
        if self.flow.write_paused:
            return Phase.WRITE
        if cycle is not None and not cycle.response_complete:
            return Phase.BODY if cycle.more_body else Phase.WORK
        if cycle is not None and self.conn.their_state is h11.SEND_BODY:
            return Phase.DISCARD
        return Phase.HEADER if cycle is None or self._header_begun() else Phase.IDLE

    def _header_begun(self) -> bool:
        return self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        self.phase = phase
        self._set_timer(self._limits_s.get(phase))
        if phase is Phase.WORK:
            self._table.end_wait(self)
            self.flow.resume_reading()  # a large body has paused it, and only reading tells that the client leaves
        else:
            self._table.begin_wait(self)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self.phase is Phase.IDLE or (self.phase is Phase.HEADER and not self._header_begun()):
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
        if not self._probed and self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] == "1.1":
            self._probed = True
            interim = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(interim))
            self.loop.call_later(RESET_CHECK_S, self._probe_client)
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self.loop.call_later(HALF_CLOSE_CHECK_S, self._probe_client)
