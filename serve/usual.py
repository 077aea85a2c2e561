"""The usual request, read and answered without h11, which takes a quarter of the time that a short text takes in all.

Usual is what nearly every client sends: a POST whose header and body arrive in one piece, with one Host, one
Content-Length and nothing that changes how it is read, in a narrower grammar than HTTP's. So there is nothing in it
that h11, a proxy or RFC 9112 could read otherwise. Whatever else arrives, h11 reads, refuses and answers as ever.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

from attenuator.serve.framing import Connection

if TYPE_CHECKING:
    from attenuator.serve.protocol import HttpProtocol

MAX_USUAL_HEADER_BYTES = 4096
METHOD = b"POST"
# A field's value begins and ends with a visible character. Quantifiers are possessive: the patterns never backtrack.
FIELD = rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++): ?+([!-~][ -~]*+)(?<! )\r\n"
HEAD = re.compile(rb"POST (/[A-Za-z0-9/_.-]*+) HTTP/1\.1\r\n((?:" + FIELD + rb")++)\r\n")
FIELDS = re.compile(FIELD)
ANSWER_FIELDS = re.compile(rb"(?:" + FIELD + rb")++")
LENGTH = re.compile(rb"[1-9][0-9]{0,8}")
UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))
UNUSUAL_IN_ANSWERS = UNUSUAL | {b"connection"}

Headers = Sequence[tuple[bytes, bytes]]


class UsualRequest(NamedTuple):
    """A request that arrived in one piece.

    Attributes:
        path: of its target, which is nothing else.
        headers: their names in small letters.
        body: all of it.
    """

    path: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


def read_usual(data: bytes) -> UsualRequest | None:
    """Reads what has arrived since the last request; None where h11 must."""
    head = HEAD.match(data, 0, MAX_USUAL_HEADER_BYTES)
    if head is None:
        return None
    headers = [(name.lower(), value) for name, value in FIELDS.findall(head[2])]
    single = dict(headers)
    length = single.get(b"content-length", b"")
    usual = (
        len(single) == len(headers)  # a name that occurs twice may mean two things
        and b"host" in single
        and LENGTH.fullmatch(length)
        and len(data) - head.end() == int(length)
        and UNUSUAL.isdisjoint(single)
        and single.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    )
    return UsualRequest(head[1], headers, data[head.end() :]) if usual else None


def answer_of(status: int, headers: Headers, body: bytes) -> bytes | None:
    """The bytes of an answer; None where h11 must write it, or refuse to."""
    fields = b"".join([b"%s: %s\r\n" % header for header in headers])
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    framed = status >= 200 and status not in (204, 304) and lengths == [b"%d" % len(body)]
    one_line_each = fields.count(b"\r\n") == len(headers) and ANSWER_FIELDS.fullmatch(fields)
    if not framed or not one_line_each or any(name.lower() in UNUSUAL_IN_ANSWERS for name, _ in headers):
        return None
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, STATUS_PHRASES[status], fields, body)


class UsualCycle(RequestResponseCycle):
    """Answers a usual request: in one piece where all of the answer is there, else as uvicorn does."""

    def __init__(self, protocol: "HttpProtocol", request: UsualRequest) -> None:
        path = request.path.decode("ascii")
        super().__init__(
            scope={
                "type": "http",
                "asgi": {"version": protocol.asgi_version, "spec_version": "2.3"},
                "http_version": "1.1",
                "server": protocol.server,
                "client": protocol.client,
                "scheme": cast(Any, protocol.scheme),
                "method": METHOD.decode("ascii"),
                "root_path": "",
                "path": path,
                "raw_path": request.path,
                "query_string": b"",
                "headers": request.headers,
                "state": protocol.app_state.copy(),
            },
            conn=protocol.conn,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=protocol.access_log,
            default_headers=protocol.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=protocol.on_response_complete,
        )
        self._begun: Any = None
        self.body = bytearray(request.body)
        self.more_body = False
        self.message_event.set()

    async def send(self, message: Any) -> None:
        """Sends a message of the answer; its start is held until its body's first part says whether that is all."""
        if message["type"] == "http.response.start" and not self.response_started:
            self._begun = message
            self.response_started = True
            return
        begun, self._begun = self._begun, None
        if begun is not None:
            if self._send_whole(begun, message):
                return
            self.response_started = False
            await super().send(begun)
        await super().send(message)

    def _send_whole(self, begun: Any, message: Any) -> bool:
        """Sends an answer in one piece; False where it cannot be."""
        conn = cast(Connection, self.conn)
        ready = not (self.flow.write_paused or self.disconnected) and self.keep_alive and conn.awaits_usual_answer()
        if not ready or message["type"] != "http.response.body" or message.get("more_body", False):
            return False
        headers = [*self.default_headers, *begun.get("headers", ())]
        output = answer_of(begun["status"], headers, message.get("body", b""))
        if output is None:
            return False
        conn.end_usual()
        self.transport.write(output)
        self.response_complete = True
        self.message_event.set()
        self.on_response()
        return True
