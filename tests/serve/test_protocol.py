"""HTTP as sockets speak it: half-closed clients, pipelines, upgrades, content types, early answers, time limits."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from service import Service, dumped, read_answer, request_bytes

STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
SLOW = dumped(model=..., inputs=["good film " * 4000] * 3, num_hashes=0)


@contextmanager
def connected(one: Service) -> Iterator[socket.socket]:
    with socket.create_connection((one.host, one.port), timeout=30) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    answer = b""
    while part := connection.recv(65536):
        answer += part
    return answer


def statuses(one: Service, data: bytes, *, half_close: bool = False) -> list[int]:
    """The statuses of all answers until the server closes."""
    with connected(one) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return [int(status) for status in STATUS.findall(read_all(connection))]


def with_header(line: str, body: bytes = b"") -> bytes:
    """A request with a further header line."""
    return request_bytes(body or dumped()).replace(b"Host: localhost", b"Host: localhost\r\n" + line.encode())


def test_half_closed_client_gets_its_answers(service: Service) -> None:
    assert statuses(service, request_bytes(dumped()), half_close=True) == [200]
    assert statuses(service, request_bytes(dumped()) * 3, half_close=True) == [200, 200, 200]
    assert statuses(service, b"GET /health/live HTTP/1.0\r\n\r\n", half_close=True) == [200]


def test_half_closed_client_gets_the_answer_to_a_long_request(start: Callable[..., Service]) -> None:
    one = start()
    received = statuses(one, request_bytes(SLOW), half_close=True)
    assert received[-1] == 200  # an interim answer may come first: it asks whether the client is still there
    assert set(received[:-1]) <= {100}
    assert "the client disconnected" not in one.log()


def test_a_client_that_leaves_during_its_request_is_not_probed_any_more(start: Callable[..., Service]) -> None:
    one = start()
    with connected(one) as connection:
        connection.sendall(request_bytes(SLOW))
    one.wait_for_log("the client disconnected")
    time.sleep(2)  # until the next probe would have come
    assert "Exception in callback" not in one.log()


def test_an_answer_is_sent_in_one_piece(service: Service) -> None:
    with connected(service) as connection:
        for body, status in ((dumped(), b"200"), (b"{", b"400")):
            connection.sendall(request_bytes(body))
            head, _, rest = connection.recv(65_536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status)
            assert f"content-length: {len(rest)}\r\n".encode() in head


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    last = with_header("Connection: close")
    data = request_bytes(dumped(), method="GET") + request_bytes(b"{") + request_bytes(dumped()) + last
    assert statuses(service, data) == [405, 400, 200, 200]


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_upgrades_are_answered_like_any_other_request(service: Service, protocol: str) -> None:
    lines = f"Connection: close, Upgrade\r\nUpgrade: {protocol}\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13"
    assert statuses(service, with_header(lines)) == [200]
    status, _, body = service.raw(with_header(lines).replace(b"POST /v1/classify", b"GET /chat"))
    assert (status, json.loads(body)["error_type"]) == (404, "not_found")


def test_malformed_requests_do_not_fill_the_log(start: Callable[..., Service]) -> None:
    one = start()
    before = len(one.log())
    for _ in range(60):
        one.raw(b"nonsense \x00 secret\r\n\r\n")
        one.raw(
            with_header("Upgrade: websocket\r\nConnection: Upgrade").replace(b"POST /v1/classify", b"BREW /health/live")
        )
    lines = one.wait_for_log("answered 400 to what is not a valid request, error_type=malformed_request")[before:]
    assert lines.count("not a valid request") < 20
    assert lines.count("WARNING") == 0
    assert "secret" not in lines


@pytest.mark.parametrize(
    "value",
    ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"', "application/ld+json"],
)
def test_json_content_types_are_taken(service: Service, value: str) -> None:
    assert service.client.post("/v1/classify", content=dumped(), headers={"Content-Type": value}).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "application/x-www-form-urlencoded",
        "text/plain",
        "",
        "json",
        "application/jsonp",
        "multipart/form-data; boundary=application/json",
        "application/json; charset=utf-16",
    ],
)
def test_other_content_types_are_refused(service: Service, value: str) -> None:
    refused = service.client.post("/v1/classify", content=dumped(), headers={"Content-Type": value})
    assert (refused.status_code, refused.json()["error_type"]) == (415, "unsupported_media_type")
    assert "Content-Type: application/json" in refused.json()["error"]


def test_two_content_types_must_both_be_json(service: Service) -> None:
    headers = [("Content-Type", "application/json"), ("Content-Type", "text/plain")]
    assert service.client.post("/v1/classify", content=dumped(), headers=headers).status_code == 415


def test_client_that_is_refused_while_it_sends_reads_the_answer_and_goes_on(service: Service) -> None:
    """The header alone decides; the body is thrown away, and the connection serves the next request."""
    with connected(service) as connection:
        connection.sendall(with_header("Content-Type: text/plain", b" " * 3_000_000))
        assert read_answer(connection).startswith(b"HTTP/1.1 415")
        connection.sendall(with_header("Connection: close"))
        assert STATUS.findall(read_all(connection)) == [b"200"]


def test_refused_client_that_waits_to_be_asked_for_its_body_is_closed(service: Service) -> None:
    """Whether the body still comes is its own choice, so that the next request's begin would be a guess."""
    head = with_header("Expect: 100-continue\r\nContent-Type: text/plain").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    assert statuses(service, head) == [415]


def test_silent_and_slow_headers_are_closed(start: Callable[..., Service]) -> None:
    one = start("--header-timeout-ms", "400", "--keep-alive-timeout-ms", "60000")
    with connected(one) as silent, connected(one) as slow, connected(one) as kept:
        kept.sendall(request_bytes(dumped()))
        assert read_answer(kept).startswith(b"HTTP/1.1 200")
        for byte in b"GET /health/live HTTP/1.1\r\nHost: localhost"[:20]:  # bytes that trickle in buy no time
            slow.sendall(bytes([byte]))
        assert read_all(silent) == b""
        answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_type"] == "header_timeout"
        kept.sendall(with_header("Connection: close"))  # between requests another limit holds
        assert read_all(kept).startswith(b"HTTP/1.1 200")


def test_kept_connections_are_closed_after_their_own_time(start: Callable[..., Service]) -> None:
    one = start("--keep-alive-timeout-ms", "300")
    with connected(one) as connection:
        connection.sendall(request_bytes(dumped()))
        started = time.monotonic()
        assert len(STATUS.findall(read_all(connection))) == 1
        assert time.monotonic() - started < 10
    with connected(one) as connection:  # pipelined: what follows at once is no wait
        connection.sendall(request_bytes(dumped()) * 2)
        assert len(STATUS.findall(read_all(connection))) == 2


def test_keep_alive_is_longer_than_the_python_client_waits() -> None:
    import httpx

    from attenuator.serve.settings import ServeSettings

    kept_s = httpx.Limits().keepalive_expiry
    assert kept_s is not None
    assert ServeSettings.model_fields["keep_alive_timeout_ms"].default >= 5 * kept_s * 1000


def test_a_body_without_a_content_type_is_refused(service: Service) -> None:
    """A web page of anyone may send it to a service on localhost without asking."""
    head = f"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(dumped())}\r\n\r\n"
    status, _, body = service.raw(head.encode() + dumped())
    assert (status, json.loads(body)["error_type"]) == (415, "unsupported_media_type")
    assert "the Content-Type is missing, must be application/json" in json.loads(body)["error"]


def test_names_that_lead_here_from_elsewhere_are_refused_on_loopback(start: Callable[..., Service]) -> None:
    """DNS rebinding: a web page whose own name is made to lead to 127.0.0.1 is of one origin with the service."""

    def status(one: Service, host: str) -> tuple[int, str]:
        status, _, body = one.raw(f"GET /health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return status, json.loads(body).get("error", "")

    one = start()
    for host in ("localhost", "LocalHost:8000", "a.localhost", "127.0.0.1:1", "10.1.2.3", "[::1]:9", ""):
        assert status(one, host)[0] == 200, host
    for host in ("evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example"):
        code, sentence = status(one, host)
        assert code == 421
        assert f"its Host header names {host.partition(':')[0]}, must name localhost, an address, or one of" in sentence
    named = start("--allowed-hosts", "one.example, Two.example")
    assert [status(named, host)[0] for host in ("one.example:80", "two.EXAMPLE", "three.example")] == [200, 200, 421]
    assert status(start("--host", "0.0.0.0"), "any.example")[0] == 200


def test_answers_do_not_name_the_web_server(service: Service) -> None:
    assert "server" not in service.client.get("/health/live").headers


def test_the_reference_runs_nothing_inline_or_from_elsewhere(service: Service) -> None:
    answer = service.client.get("/docs")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe-inline" not in policy
    assert not re.findall(r"<style|<script(?![^>]* src=)| on[a-z]+=", answer.text), "nothing is inline"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
