"""HTTP/1.1 as llhttp reads it, with what it leaves to its callers: ambiguous requests, limits, ignored upgrades.

llhttp reads all that has arrived at once. So requests that follow one that is not answered yet wait in uvicorn's
`pipeline`, and its `cycle` is the request that was read last.
"""

import functools
import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from attenuator.serve.edge.arrivals import client_of

MAX_HEADER_BYTES = 16 * 2**10
MAX_SMALL_CHUNKS = 1024  # each takes a few microseconds, however little it holds
SMALL_CHUNK_BYTES = 256
MAX_WAITING_REQUESTS = 64  # of one connection; each takes a few kilobytes
# A name or an address, perhaps with a port (RFC 9110, 7.2); the field may be empty. A server must refuse others.
HOST = re.compile(
    rb"(?:\[(?P<literal>[0-9A-Za-z:.%_~-]++)\]|(?P<name>(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*+))(?::[0-9]*+)?",
    re.ASCII,
)
# A user before the host would make another host look like the one asked for (RFC 9110, 4.2.4).
TARGET = re.compile(rb"(?:https?://[^/?#@]+)?/[^#]*|\*", re.IGNORECASE)
HEADER, BODY = "header", "body"
HEADER_TOO_LARGE = f"its header is too large, must have at most {MAX_HEADER_BYTES} bytes"


class RefusedRequest(httptools.HttpParserError):
    """A request that is not valid HTTP, or over a limit.

    Attributes:
        status: of the answer.
    """

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class Hosts:
    """The names that requests may be for.

    A web page whose own name is made to lead here ("DNS rebinding") would be one origin with the service and could read
    its answers. Its requests have the page's name in their Host header, never an address. So addresses and `localhost`
    are always accepted.
    """

    def __init__(self, names: Iterable[str] = ("*",)) -> None:
        self._names = {name.lower().encode() for name in names} | {b"localhost", b""}
        self.check = functools.lru_cache(maxsize=64)(self._check)

    def _check(self, value: bytes) -> None:
        """Refuses a Host header that is no name or address with a port, or a name that is not accepted."""
        match = HOST.fullmatch(value)
        if match is None or (match["literal"] and not _is_address(match["literal"])):
            raise RefusedRequest("its Host header is no name or address with a port, must be HOST or HOST:PORT")
        name = (match["name"] or b"").lower().removesuffix(b".")
        if not (name in self._names or b"*" in self._names or name.endswith(b".localhost") or _is_address(name)):
            raise RefusedRequest(
                f"its Host header names {name.decode('ascii')[:80]}, must name localhost, an address, or one of "
                "--allowed-hosts",
                421,
            )


def _is_address(text: bytes) -> bool:
    try:
        ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return False
    return True


def check_header(
    method: bytes, target: bytes, version: str, headers: Sequence[tuple[bytes, bytes]], allowed: Hosts
) -> None:
    """Refuses requests that a proxy might read as two, or as another one, and headers over the limit.

    The names of headers are in small letters.

    Raises:
        RefusedRequest: the request is refused.
    """
    if version not in ("1.0", "1.1"):
        raise RefusedRequest(f"its version is HTTP/{version}, must be HTTP/1.1 or HTTP/1.0")
    if method == b"CONNECT":
        raise RefusedRequest("its method is CONNECT, but this service is no proxy")
    if not TARGET.fullmatch(target):
        raise RefusedRequest("its target is no path without '#', must be one, or an address http://HOST:PORT/PATH")
    hosts, codings, size = [], [], len(target)
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding":
            codings.append(value.lower())
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise RefusedRequest(f"it has {len(hosts)} Host headers, must have one")
    if hosts:
        allowed.check(hosts[0])
    if codings and version == "1.0":
        raise RefusedRequest("it has Transfer-Encoding in HTTP/1.0, which requires HTTP/1.1")
    if codings not in ([], [b"chunked"]):
        raise RefusedRequest("its Transfer-Encoding is not supported, must be chunked", 501)
    if size > MAX_HEADER_BYTES:
        raise RefusedRequest(HEADER_TOO_LARGE, 431)


class RequestReader(HttpToolsProtocol):
    """Reads the requests of one connection.

    Attributes:
        current: the request that is being answered; None where there is none.
        unfinished: what has begun of the request that was read last and has not ended: `header`, `body` or nothing.
    """

    def __init__(self, config: Config, server_state: ServerState, hosts: Hosts) -> None:
        super().__init__(config, server_state, {})
        self.current: RequestResponseCycle | None = None
        self.unfinished = ""
        self._hosts = hosts
        self._bytes_between = 0  # received since the last end of a header, part of a body or end of a request
        self._spare_chunks = 0.0

    def refuse(self, status: int, reason: str) -> None:
        """Answers what was read last with an error, and closes; nothing is read any more."""
        raise NotImplementedError

    def parse(self, data: bytes) -> None:
        """Reads what has arrived; refuses it where it is not valid HTTP."""
        self._bytes_between += len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._without_upgrade(data[upgrade.args[0] :])
            if self._bytes_between > MAX_HEADER_BYTES:
                raise RefusedRequest(HEADER_TOO_LARGE, 431)
        except httptools.HttpParserError as error:
            raised = error.__context__  # by a callback
            cause = raised if isinstance(raised, httptools.HttpParserError) else error
            what = "its target is no address" if isinstance(cause, httptools.HttpParserInvalidURLError) else cause
            self.refuse(getattr(cause, "status", 400), f"the request is not valid HTTP: {what}")

    def _without_upgrade(self, rest: bytes) -> bytes:
        """What to read again of a request whose client asks for another protocol, which a server may ignore.

        llhttp takes what follows such a header for the other protocol, the request's own body included.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", rest])

    def _should_upgrade(self) -> bool:
        return True  # `_without_upgrade` begins the request, not uvicorn

    def on_message_begin(self) -> None:
        """A request's first byte was read; it is refused where too many wait on this connection."""
        if len(self.pipeline) >= MAX_WAITING_REQUESTS:
            raise RefusedRequest(f"more than {MAX_WAITING_REQUESTS} requests wait for an answer to one before them")
        self.unfinished = HEADER
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of a header was read, or of a trailer, which is for nobody here."""
        if self.unfinished == HEADER:
            super().on_header(name, value.rstrip(b" \t"))
        elif name.lower() in (b"connection", b"proxy-connection"):  # with `close` the next request would not be read
            raise RefusedRequest(f"its trailer has {name.decode()}, which must stand in the header")

    def on_headers_complete(self) -> None:
        """A request's header was read: it is answered from now on, waits for its turn, or is refused."""
        self.unfinished = ""
        self._bytes_between, self._spare_chunks = 0, MAX_SMALL_CHUNKS
        version = self.parser.get_http_version()
        check_header(self.parser.get_method(), self.url, version, self.headers, self._hosts)
        if self.parser.should_upgrade():
            return
        self.expect_100_continue &= version == "1.1"
        super().on_headers_complete()
        self.unfinished = BODY
        if not self.pipeline:
            self.current = self.cycle

    def on_chunk_header(self) -> None:
        """A chunk of a body begins; very many tiny ones at once would keep all others waiting, and are refused."""
        self._spare_chunks -= 1
        if self._spare_chunks < 0:
            raise RefusedRequest(
                f"the body has more than {MAX_SMALL_CHUNKS} chunks of less than {SMALL_CHUNK_BYTES} bytes on average"
            )

    def on_body(self, body: bytes) -> None:
        """A part of a body was read."""
        self._bytes_between = 0
        self._spare_chunks += len(body) / SMALL_CHUNK_BYTES
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request was read to its end; one that asks for another protocol is read again."""
        self._bytes_between = 0
        if self.unfinished == BODY:
            self.unfinished = ""
            super().on_message_complete()
            self.cycle.more_body = False  # also where it was answered before
            client_of(cast("dict[str, Any]", self.cycle.scope)).body = self.cycle.body
