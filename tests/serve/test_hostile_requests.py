"""Requests that parsers read differently: refused with one answer in JSON, and what follows them is never served."""

import json
import random
import re
import socket

import pytest
from service import Service, dumped, read_answer

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
BODY = dumped()
LENGTH = b"Content-Length: %d" % len(BODY)
CODING = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
JSON = b"Content-Type: application/json"
NEXT = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def request(
    *lines: bytes,
    framing: bytes = LENGTH,
    method: bytes = b"POST",
    target: bytes = b"/v1/classify",
    version: bytes = b"HTTP/1.1",
    body: bytes = BODY,
) -> bytes:
    """A request, good but for what is set."""
    first = b" ".join([method, target, version])
    return b"\r\n".join([first, b"Host: localhost", JSON, *filter(None, [framing]), *lines, b"", body])


def chunked(body: bytes, *lines: bytes) -> bytes:
    """A request with a body in chunks."""
    return request(*lines, framing=CODING, body=body)


def exchange(one: Service, data: bytes) -> bytes:
    """All that the service answers until it closes."""
    with socket.create_connection((one.host, one.port), timeout=30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


SERVED: dict[str, tuple[int, bytes]] = {
    "plain": (200, request()),
    "kept": (200, request(b"Connection: keep-alive")),
    "value empty": (200, request(b"X-Empty:")),
    "value trailing": (200, request(b"X-Trailing: a \t")),
    "value Latin": (200, request(b"X-Latin: \xe9")),
    "length trailing": (200, request(framing=LENGTH + b" \t")),
    "length with zeros": (200, request(framing=LENGTH.replace(b": ", b":  0"))),
    "expects": (200, request(b"Expect: 100-continue")),
    "empty lines before": (200, b"\r\n\r\n" + request()),
    "chunked": (200, chunked(CHUNKS)),
    "chunked in capitals": (200, request(framing=CODING.upper(), body=CHUNKS)),
    "chunked trailing": (200, request(framing=CODING + b" ", body=CHUNKS)),
    "extension of a chunk": (200, chunked(CHUNKS.replace(b"\r\n", b';a="b"\r\n', 1))),
    "trailer": (200, chunked(CHUNKS[:-2] + b"Content-Type: text/plain\r\nX: y\r\n\r\n")),
    "whole address": (200, request(target=b"http://t/v1/classify")),
    "fields in the address": (422, request(target=b"/v1/classify?x=1")),
    "upgrade": (200, request(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c")),
    "upgrade alone": (200, request(b"Upgrade: h2c")),
    "upgrade of a proxy": (200, request(b"Proxy-Connection: upgrade", b"Upgrade: h2c")),
    "upgrade with chunks": (200, chunked(CHUNKS, b"Connection: Upgrade", b"Upgrade: websocket")),
    "escaped target": (404, request(target=b"/%2e")),
    "asterisk": (404, request(method=b"OPTIONS", target=b"*")),
    "host empty": (200, request().replace(b"Host: localhost", b"Host:")),
    "host with a port": (200, request().replace(b"Host: localhost", b"Host: t.localhost:8000")),
    "host with an empty port": (200, request().replace(b"Host: localhost", b"Host: localhost:")),
    "host of IPv6": (200, request().replace(b"Host: localhost", b"Host: [fe80::1%25eth0]:8000")),
    "target with a scheme in capitals": (200, request(target=b"HTTPS://t/v1/classify")),
    "other method": (405, request(method=b"GET")),
}
REFUSED: dict[str, tuple[int, bytes]] = {
    "two lengths, equal": (400, request(LENGTH)),
    "two lengths": (400, request(b"Content-Length: 3")),
    "list of lengths": (400, request(framing=LENGTH + b", %d" % len(BODY))),
    "length signed": (400, request(framing=LENGTH.replace(b": ", b": +"))),
    "length negative": (400, request(framing=b"Content-Length: -1")),
    "length in hexadecimal": (400, request(framing=b"Content-Length: 0x3")),
    "length empty": (400, request(framing=b"Content-Length:")),
    "length of two numbers": (400, request(framing=b"Content-Length: 3 3")),
    "length endless": (400, request(framing=b"Content-Length: " + b"9" * 30)),
    "length with a vertical tab": (400, request(framing=LENGTH.replace(b": ", b": \x0b"))),
    "length short": (400, request(body=BODY + b"x")),
    "length, then chunked": (400, request(CODING, body=CHUNKS)),
    "chunked, then length": (400, request(LENGTH, framing=CODING, body=CHUNKS)),
    "chunked, then length empty": (400, chunked(CHUNKS, b"Content-Length:")),
    "upgrade, length, then chunked": (400, request(CODING, b"Connection: Upgrade", b"Upgrade: h2c", body=CHUNKS)),
    "chunked twice": (400, chunked(CHUNKS, CODING)),
    "chunked twice in a line": (400, request(framing=CODING + b", chunked", body=CHUNKS)),
    "chunked not last": (400, request(framing=CODING + b", gzip", body=CHUNKS)),
    "coding empty": (400, request(framing=b"Transfer-Encoding:", body=CHUNKS)),
    "coding unknown": (501, request(framing=b"Transfer-Encoding: gzip", body=CHUNKS)),
    "coding before": (501, request(framing=b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    "coding nameless": (501, request(framing=b"Transfer-Encoding: ,chunked", body=CHUNKS)),
    "identity, then chunked": (501, request(
        CODING, framing=b"Transfer-Encoding: identity", body=CHUNKS)),
    "upgrade, coding unknown": (501, request(
        b"Connection: Upgrade", b"Upgrade: h2c", framing=b"Transfer-Encoding: x", body=CHUNKS)),
    "coding quoted": (501, request(framing=b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    "coding with parameter": (501, request(framing=CODING + b";q=1", body=CHUNKS)),
    "coding prefixed": (501, request(framing=b"Transfer-Encoding: xchunked", body=CHUNKS)),
    "coding with NUL": (400, request(framing=CODING + b"\x00", body=CHUNKS)),
    "coding with a vertical tab": (400, request(framing=CODING.replace(b": ", b": \x0b"), body=CHUNKS)),
    "coding folded": (400, request(framing=CODING.replace(b": ", b":\r\n "), body=CHUNKS)),
    "coding, space before colon": (400, request(framing=CODING.replace(b": ", b" : "), body=CHUNKS)),
    "coding in HTTP/1.0": (400, request(framing=CODING, version=b"HTTP/1.0", body=CHUNKS)),
    "folded": (400, request(b"X-Folded: a\r\n b")),
    "folded at first": (400, request().replace(b"Host: localhost", b" X: a\r\nHost: localhost")),
    "space before colon": (400, request(b"X-Space : a")),
    "nameless": (400, request(b": nameless")),
    "no colon": (400, request(b"nameless")),
    "name with NUL": (400, request(b"X\x00: a")),
    "name of two words": (400, request(b"X Y: a")),
    "name in Latin": (400, request(b"X\xe9: a")),
    "name with a bracket": (400, request(b"X[: a")),
    "value with NUL": (400, request(b"X: a\x00b")),
    "value with CR": (400, request(b"X: a\rb")),
    "value with LF": (400, request(b"X: a\nb")),
    "value with DEL": (400, request(b"X: a\x7fb")),
    "line of CR CR LF": (400, request(b"X: a\r")),
    "lines of LF": (400, request().replace(b"\r\n", b"\n")),
    "first line of LF": (400, request().replace(b"\r\n", b"\n", 1)),
    "first line of CR": (400, request().replace(b"\r\n", b"\r", 1)),
    "other host": (400, request(b"Host: other")),
    "no host": (400, request().replace(b"Host: localhost\r\n", b"")),
    "host with an escape": (421, request().replace(b"Host: localhost", b"Host: localhost%41")),
    "host with a path": (400, request().replace(b"Host: localhost", b"Host: localhost/x")),
    "host with a user": (400, request().replace(b"Host: localhost", b"Host: a@t")),
    "host of two words": (400, request().replace(b"Host: localhost", b"Host: localhost u")),
    "host with a scheme": (400, request().replace(b"Host: localhost", b"Host: http://t")),
    "host with a port of letters": (400, request().replace(b"Host: localhost", b"Host: localhost:http")),
    "host with a bracket": (400, request().replace(b"Host: localhost", b"Host: [::1")),
    "host of a colon alone": (400, request().replace(b"Host: localhost", b"Host: [:]")),
    "host with a name in brackets": (400, request().replace(b"Host: localhost", b"Host: [t]")),
    "host of a later version of addresses": (400, request().replace(b"Host: localhost", b"Host: [v1.a:b]:80")),
    "host with half an escape": (400, request().replace(b"Host: localhost", b"Host: localhost%4")),
    "host in Latin": (400, request().replace(b"Host: localhost", b"Host: \xe9")),
    "size of a chunk signed": (400, chunked(b"+" + CHUNKS)),
    "size of a chunk prefixed": (400, chunked(b"0x" + CHUNKS)),
    "size of a chunk empty": (400, chunked(b"\r\n" + CHUNKS)),
    "size of a chunk endless": (400, chunked(b"1" + b"0" * 16 + CHUNKS)),
    "space before a chunk's size": (400, chunked(b" " + CHUNKS)),
    "space after a chunk's size": (400, chunked(CHUNKS.replace(b"\r\n", b" \r\n", 1))),
    "LF after a chunk's size": (400, chunked(CHUNKS.replace(b"\r\n", b"\n", 1))),
    "LF in an extension": (400, chunked(CHUNKS.replace(b"\r\n", b";a\n\r\n", 1))),
    "line in a quoted extension": (400, chunked(CHUNKS.replace(b"\r\n", b';a="\r\n"\r\n', 1))),
    "no line after a chunk": (400, chunked(CHUNKS.replace(b"\r\n0", b"0"))),
    "chunk longer than its size": (400, chunked(b"1\r\n" + CHUNKS.partition(b"\r\n")[2])),
    "trailer with a length": (400, chunked(CHUNKS[:-2] + b"Content-Length: 5\r\n\r\n")),
    "trailer with a coding": (400, chunked(CHUNKS[:-2] + CODING + b"\r\n\r\n")),
    "trailer that closes": (400, chunked(CHUNKS[:-2] + b"Connection: close\r\n\r\n")),
    "trailer that closes for a proxy": (400, chunked(CHUNKS[:-2] + b"proxy-connection: close\r\n\r\n")),
    "trailer folded": (400, chunked(CHUNKS[:-2] + b"X: y\r\n z\r\n\r\n")),
    "extension endless": (431, chunked(b"1;" + b"a" * 400_000)),
    "trailer endless": (431, chunked(CHUNKS[:-2] + b"X: " + b"a" * 400_000)),
    "trailers endless": (431, chunked(CHUNKS[:-2] + b"X: y\r\n" * 100_000)),
    "HTTP/2": (400, request(version=b"HTTP/2.0")),
    "HTTP/0.9": (400, request(version=b"HTTP/0.9")),
    "HTTP/1.2": (400, request(version=b"HTTP/1.2")),
    "version in small letters": (400, request(version=b"http/1.1")),
    "space after the version": (400, request(version=b"HTTP/1.1 ")),
    "preface of HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "method in small letters": (400, request(method=b"post")),
    "method unknown": (400, request(method=b"BREW")),
    "tunnel": (400, request(method=b"CONNECT", target=b"t:80")),
    "tunnel to a path": (400, request(method=b"CONNECT")),
    "target of no path": (400, request(target=b"http://t")),
    "target of a query alone": (400, request(target=b"http://t?x")),
    "target with a port too high": (400, request(target=b"http://t:99999/v1/classify")),
    "target with DEL": (400, request(target=b"/\x7f")),
    "target with \\xff": (400, request(target=b"/\xff")),
    "target with a space": (400, request(target=b"/a b")),
    "target with a tab": (400, request(target=b"/a\tb")),
    "target with NUL": (400, request(target=b"/\x00")),
    "target with a fragment": (400, request(target=b"/v1/classify#x")),
    "target of another scheme": (400, request(target=b"ftp://t/v1/classify")),
    "target with a user": (400, request(target=b"http://t@other/v1/classify")),
    "target with a user and a password": (400, request(target=b"http://t:p@other/v1/classify")),
    "target of a made-up scheme": (400, request(target=b"httpx://t/v1/classify")),
    "target relative": (400, request(target=b"v1")),
    "target empty": (400, request(target=b"")),
    "tab after the method": (400, request().replace(b"POST ", b"POST\t")),
    "TLS": (400, b"\x16\x03\x01\x02\x00hello\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", SERVED.values(), ids=SERVED)
def test_unusual_request_is_served_and_the_next_one_read_where_it_begins(
    service: Service, case: tuple[int, bytes]
) -> None:
    status, data = case
    statuses = [int(one) for one in STATUS.findall(exchange(service, data + NEXT)) if one != b"100"]
    assert statuses == [status, 200]


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_hostile_request_is_refused_and_nothing_after_it_is_served(service: Service, case: tuple[int, bytes]) -> None:
    status, data = case
    answer = exchange(service, data + NEXT)
    head, _, content = answer.rpartition(b"\r\n\r\n")
    statuses = [int(one) for one in STATUS.findall(answer)]
    assert statuses[-1] == status
    assert statuses[:-1] in ([], [200])  # a request whose body ends before the fault was good
    assert b"Connection: close" in head
    error = json.loads(content)
    assert set(error) == {"error", "error_type", "param", "allowed"}
    for internal in ("NoneType", "callback", "b'"):  # says nothing to the client
        assert internal not in error["error"]


def test_a_good_request_is_answered_before_the_hostile_one_after_it(service: Service) -> None:
    for after in (b"nonsense\r\n\r\n", request(LENGTH), chunked(b"x"), NEXT[:20]):
        answer = exchange(service, request() * 2 + after)
        assert STATUS.findall(answer) == [b"200", b"200", b"400"]


@pytest.mark.parametrize("fault", [b"nonsense\r\n", b""], ids=["broken", "cut off"])
def test_an_early_answer_stays_the_only_one_of_its_request(service: Service, fault: bytes) -> None:
    """A second one would be taken for the next request's."""
    data = chunked(b"", b"Content-Type: text/plain")
    with socket.create_connection((service.host, service.port), timeout=30) as connection:
        connection.sendall(data)
        assert read_answer(connection).startswith(b"HTTP/1.1 415")
        connection.sendall(fault)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65536) == b""


def test_many_requests_ahead_are_answered_up_to_a_limit(service: Service) -> None:
    ask = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert STATUS.findall(exchange(service, ask * 64 + NEXT)) == [b"200"] * 65
    statuses = STATUS.findall(exchange(service, ask * 2000))
    assert set(statuses[:-1]) == {b"200"}
    assert statuses[-1] == b"400"


def test_trailing_spaces_and_trailers_are_no_part_of_a_header(service: Service) -> None:
    for data in (
        request(b"X-Request-Id: one \t", b"Connection: close"),
        chunked(CHUNKS[:-2] + b"X-Request-Id: two\r\n\r\n", b"X-Request-Id: one", b"Connection: close"),
        chunked(CHUNKS[:-2] + b"X-Request-Id: two\r\n\r\n", b"Connection: close"),
    ):
        assert (b"x-request-id: one\r\n" in exchange(service, data)) == (b" one" in data)


LINES = [
    b"Connection: keep-alive",
    b"Connection: close",
    b"Connection: Upgrade",
    b"Content-Length: 15",
    b"Content-Length: 15, 15",
    b"content-length:  015",
    b"Content-Length: +15",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Upgrade: h2c",
    b"Host: other",
    b"X-Empty:",
    b"X-Folded: a\r\n b",
    b"X-Space : a",
    b"X-Trailing: a \t",
    b"X-Nul: a\x00b",
    b"X-Latin: \xe9",
    b"X-Return: a\rb",
    b"X-Feed: a\nb",
    b"Accept: */*",
    b": nameless",
]
TARGETS = [b"/v1/classify", b"/v1/classify?x=1", b"/%2e", b"*", b"http://t/v1", b"/\xff", b"/a b", b""]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 "]
METHODS = [b"POST", b"GET", b"HEAD", b"CONNECT", b"post"]
BYTES = b"\r\n\t :;,0\x00\x7f\xff"


def mutated(draw: random.Random) -> bytes:
    """A request, nearly always a little different from a good one."""

    def mostly(values: list[bytes]) -> bytes:
        return values[0] if draw.random() < 0.85 else draw.choice(values)

    lines = [b"Host: localhost", JSON, b"Content-Length: %d" % (len(BODY) + draw.choice([0] * 8 + [-1, 1]))]
    lines += draw.sample(LINES, draw.choice([0, 0, 1, 1, 2]))
    draw.shuffle(lines)
    first = b" ".join([mostly(METHODS), mostly(TARGETS), mostly(VERSIONS)])
    data = bytearray(b"\r\n".join([first, *lines, b"", BODY]))
    if draw.random() < 0.4:
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 2)] = bytes(draw.choices(BYTES, k=draw.randint(0, 2)))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_request_gets_one_answer_as_documented(service: Service, seed: int) -> None:
    """And one that is not valid HTTP is the last on its connection."""
    draw = random.Random(seed)
    counts: dict[int, int] = {}
    for _ in range(250):
        data = mutated(draw)
        statuses = [int(one) for one in STATUS.findall(exchange(service, data)) if one != b"100"]
        assert statuses, data
        assert len(statuses) == 1 or statuses[1:] == [400], data
        assert statuses[0] in (200, 400, 404, 405, 415, 421, 422, 501), data
        counts[statuses[0]] = counts.get(statuses[0], 0) + 1
    assert counts[200] > 30, counts
    assert counts[400] > 50, counts
    service.good()
