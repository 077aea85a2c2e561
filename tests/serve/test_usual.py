"""Requests and answers that bypass h11 are read and written as h11 does it, and nothing else bypasses it."""

import random

import h11
import pytest
from service import request_bytes

from attenuator.serve.framing import Connection
from attenuator.serve.usual import METHOD, UsualRequest, answer_of, read_usual

BODY = b'{"inputs": "a"}'
USUAL = request_bytes(BODY)
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
    """A request, nearly always a little different from a usual one."""

    def mostly(values: list[bytes]) -> bytes:
        return values[0] if draw.random() < 0.85 else draw.choice(values)

    lines = [b"Host: t", b"Content-Length: %d" % (len(BODY) + draw.choice([0] * 8 + [-1, 1]))]
    lines += draw.sample(LINES, draw.choice([0, 0, 1, 1, 2]))
    draw.shuffle(lines)
    first = b" ".join([mostly(METHODS), mostly(TARGETS), mostly(VERSIONS)])
    data = bytearray(b"\r\n".join([first, *lines, b"", BODY]))
    if draw.random() < 0.4:
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 2)] = bytes(draw.choices(BYTES, k=draw.randint(0, 2)))
    return bytes(data)


def read_by_h11(data: bytes) -> tuple[Connection, UsualRequest] | None:
    """What h11 reads of one whole request that leaves the connection open; None where there is none."""
    connection = Connection()
    connection.receive_data(data)
    body = b""
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            body += event.data
    except h11.RemoteProtocolError:
        return None
    open_after = connection.their_state is h11.DONE and not connection.trailing_data[0]
    path = request.target
    usual = request.method == METHOD and open_after and not connection.they_are_waiting_for_100_continue
    return (connection, UsualRequest(path, list(request.headers), body)) if usual else None


@pytest.mark.parametrize("seed", range(4))
def test_what_bypasses_h11_is_what_h11_reads(seed: int) -> None:
    draw = random.Random(seed)
    bypassed = 0
    for _ in range(1500):
        data = mutated(draw)
        request = read_usual(data)
        if request is not None:
            bypassed += 1
            peer = read_by_h11(data)
            assert peer is not None, data
            assert peer[1] == request, data
    assert 200 < bypassed < 1300


def test_state_afterwards_is_that_of_h11() -> None:
    by_h11 = read_by_h11(USUAL)
    assert by_h11 is not None
    theirs, ours = by_h11[0], Connection()
    assert ours.at_rest
    assert not theirs.at_rest
    ours.begin_usual(METHOD)
    assert ours.awaits_usual_answer()
    for connection in (ours, theirs):
        connection.receive_data(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        assert connection.next_event() is h11.PAUSED
    assert (ours.states, ours.their_http_version, ours.method) == (
        theirs.states,
        theirs.their_http_version,
        theirs.method,
    )
    headers = [(b"content-length", b"2"), (b"x-request-id", b"a")]
    written = theirs.send(h11.Response(status_code=422, headers=headers, reason=b"Unprocessable Entity"))
    written += theirs.send(h11.Data(data=b"{}"))
    written += theirs.send(h11.EndOfMessage())
    answer = answer_of(422, headers, b"{}")
    assert answer is not None
    assert answer.startswith(b"HTTP/1.1 422 Unprocessable ")
    assert answer.partition(b"\r\n")[2] == written.partition(b"\r\n")[2]
    ours.end_usual()
    assert ours.states == theirs.states
    for connection in (ours, theirs):
        connection.start_next_cycle()
        assert isinstance(connection.next_event(), h11.Request)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, [(b"content-length", b"3")]),
        (200, [(b"content-length", b"2"), (b"Content-Length", b"2")]),
        (200, []),
        (204, [(b"content-length", b"2")]),
        (200, [(b"content-length", b"2"), (b"connection", b"close")]),
        (200, [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")]),
        (200, [(b"content-length", b"2"), (b"x", b"a\r\nset-cookie: b")]),
        (200, [(b"content-length", b"2"), (b"x\r\ny", b"a")]),
        (200, [(b"content-length", b"2"), (b"x", b"")]),
    ],
    ids=["short", "twice", "unframed", "no content", "close", "chunked", "split value", "split name", "empty"],
)
def test_other_answers_are_left_to_h11(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    assert answer_of(status, headers, b"{}") is None
