"""HTTP/1.1 as h11 reads and writes it, with what it leaves to its callers: ambiguous framing, limits, no end of input.

The state of a request that was read and answered without h11 (`serve.usual`) is set here, so that everything else, from
errors to what comes next on the connection, goes through h11 as ever.
"""

from typing import Any

import h11
from h11._readers import READERS
from h11._writers import WRITERS

MAX_HEADER_BYTES = 16 * 2**10
MAX_SMALL_CHUNKS = 1024  # h11 takes about 15 us for each, however little it holds
SMALL_CHUNK_BYTES = 256
EXPECT_NOTHING: Any = READERS[h11.CLIENT, h11.DONE]
WRITE_RESPONSE: Any = WRITERS[h11.SERVER, h11.SEND_RESPONSE]


class Connection(h11.Connection):
    """h11's side of a connection, which also refuses ambiguous requests and reports no event at the end of input."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        self.error: h11.RemoteProtocolError | None = None
        self.method = b""
        self._spare_chunks = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether the next byte is a request's first."""
        states = self._cstate.states
        resting = states[h11.CLIENT] is h11.IDLE and states[h11.SERVER] is h11.IDLE
        return resting and not self._receive_buffer and not self._receive_buffer_closed

    def begin_usual(self, method: bytes) -> None:
        """Enters the state that h11 is in once it has read the whole of a request; only while `at_rest`."""
        self._cstate.states = {h11.CLIENT: h11.DONE, h11.SERVER: h11.SEND_RESPONSE}
        self._request_method = self.method = method
        self.their_http_version = b"1.1"
        self._reader, self._writer = EXPECT_NOTHING, WRITE_RESPONSE

    def awaits_usual_answer(self) -> bool:
        """Whether a whole request was read, nothing was answered yet, and the connection stays open afterwards."""
        states = self._cstate.states
        answerable = states[h11.CLIENT] is h11.DONE and states[h11.SERVER] is h11.SEND_RESPONSE
        return answerable and self._cstate.keep_alive

    def end_usual(self) -> None:
        """Enters the state that h11 is in once it has written the whole of an answer; as `awaits_usual_answer`."""
        self._cstate.states[h11.SERVER] = h11.DONE
        self._writer = None

    def next_event(self) -> Any:
        """The next event; `method` is that of the last request.

        Raises:
            RemoteProtocolError: the client broke the protocol; kept in `error`.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self.method = event.method
                self._spare_chunks = MAX_SMALL_CHUNKS
                check_framing(event)
            elif isinstance(event, h11.Data):
                self._count_chunk(event)
        except h11.RemoteProtocolError as error:
            self.error = error
            raise
        return h11.NEED_DATA if isinstance(event, h11.ConnectionClosed) else event

    def _count_chunk(self, data: h11.Data) -> None:
        """Refuses a body of very many tiny chunks: reading what arrives at once would keep all others waiting."""
        self._spare_chunks += len(data.data) / SMALL_CHUNK_BYTES - data.chunk_start
        if self._spare_chunks < 0:
            raise h11.RemoteProtocolError(
                f"the body has more than {MAX_SMALL_CHUNKS} chunks of less than {SMALL_CHUNK_BYTES} bytes on average"
            )


def check_framing(request: h11.Request) -> None:
    """Refuses requests that a proxy might read as two, and headers over the limit that arrive in one piece.

    Raises:
        RemoteProtocolError: the request is refused.
    """
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise h11.RemoteProtocolError("it has Content-Length and Transfer-Encoding, must have only one of them")
    if b"transfer-encoding" in names and request.http_version < b"1.1":
        raise h11.RemoteProtocolError("it has Transfer-Encoding in HTTP/1.0, which requires HTTP/1.1")
    if len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers) > MAX_HEADER_BYTES:
        raise h11.RemoteProtocolError(
            f"its header is too large, must have at most {MAX_HEADER_BYTES} bytes", error_status_hint=431
        )
