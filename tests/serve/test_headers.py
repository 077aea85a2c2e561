"""Request ids in answers and log lines, HEAD on routes that load balancers ask, and how addresses are written."""

import json
import re
import socket
from collections.abc import Callable

import pytest
from service import GOOD, Service

from attenuator.errors import (
    AttenuatorError,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthorized,
)
from attenuator.serve.api.errors import response_for
from attenuator.serve.edge.arrivals import BodyTimeout, BodyTooLarge
from attenuator.serve.edge.server import address, listen

HEX_ID = re.compile(r"[0-9a-f]{32}")
PATHS = ["/v1/models", "/health/live", "/health/ready", "/nowhere"]


@pytest.mark.parametrize("request_id", ["7", "trace-1:a/b+c=d@e.f_g", "a" * 128])
def test_request_id_is_given_back(service: Service, request_id: str) -> None:
    headers = {"X-Request-Id": request_id}
    for path in PATHS:
        assert service.client.get(path, headers=headers).headers["X-Request-Id"] == request_id
    assert service.client.post("/v1/classify", json=GOOD, headers=headers).headers["X-Request-Id"] == request_id
    assert service.client.post("/v1/classify", content=b"{", headers=headers).headers["X-Request-Id"] == request_id


@pytest.mark.parametrize("request_id", [None, "", "a b", "a" * 129, "[31m", "<script>", "\xe9"])
def test_request_id_is_made_where_none_is_fit(service: Service, request_id: str | None) -> None:
    headers = {} if request_id is None else {"X-Request-Id": request_id.encode("latin-1")}
    generated = [service.client.get("/health/live", headers=headers).headers["X-Request-Id"] for _ in range(2)]
    assert all(HEX_ID.fullmatch(one) for one in generated)
    assert generated[0] != generated[1]


@pytest.mark.parametrize("form", ["text", "json"])
def test_log_lines_of_a_request_have_its_id(start: Callable[..., Service], form: str) -> None:
    one = start("--log-format", form, "--drain-timeout-ms", "0")
    body = json.dumps({**GOOD, "num_hashes": 0, "inputs": ["good film " * 4000] * 8}).encode()
    head = (
        "POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: left-7\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((one.host, one.port)) as connection:
        connection.sendall(head.encode() + body)
    one.wait_for_log("the client disconnected")
    lines = [line for line in one.log().splitlines() if "the client disconnected" in line]
    assert len(lines) == 1, one.log()
    if form == "json":
        assert json.loads(lines[0])["request_id"] == "left-7"
    else:
        assert " attenuator.serve.api.routes [left-7]: the client disconnected" in lines[0]
    loaded = next(line for line in one.log().splitlines() if "loaded yoso" in line)
    assert "request_id" not in loaded
    assert "[" not in loaded


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (Unauthorized("no key"), 401, {"WWW-Authenticate": "Bearer"}),
        (BodyTimeout("late"), 408, {"Connection": "close"}),
        (BodyTooLarge("large"), 413, {"Connection": "close"}),
        (InvalidRequest("wrong"), 422, {}),
        (Overloaded("full"), 429, {"Retry-After": "1"}),
        (Overloaded("full", retry_after_s=0.2), 429, {"Retry-After": "1"}),
        (Overloaded("full", retry_after_s=2.1), 429, {"Retry-After": "3"}),
        (EngineError("failed"), 500, {}),
        (NotReady("draining"), 503, {"Retry-After": "1"}),
        (DeadlineExceeded("late"), 504, {}),
        (AttenuatorError("of no kind that has a status"), 500, {}),
    ],
)
def test_an_error_says_what_to_do_next_in_its_headers(
    error: AttenuatorError, status: int, expected: dict[str, str]
) -> None:
    answer = response_for(error)
    names = ("WWW-Authenticate", "Connection", "Retry-After")
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in names if name in answer.headers} == expected


@pytest.mark.parametrize("path", ["/v1/models", "/health/live", "/health/ready", "/docs"])
def test_head_is_get_without_a_body(service: Service, path: str) -> None:
    head, get = service.client.head(path), service.client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["Content-Length"] == str(len(get.content))
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_head_is_not_in_the_description(service: Service) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    assert {method for methods in paths.values() for method in methods} == {"get", "post"}


@pytest.mark.parametrize(
    ("host", "written"), [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("fe80::1%eth0", "[fe80::1%eth0]:80")]
)
def test_address_puts_ipv6_in_brackets(host: str, written: str) -> None:
    assert address(host, 80) == written


def test_address_that_cannot_be_bound_is_told_in_brackets() -> None:
    with pytest.raises(AttenuatorError, match=r"^cannot listen on \[2001:db8::1\]:80: "):
        listen("2001:db8::1", 80)


def test_ready_line_is_an_address_that_works(start: Callable[..., Service]) -> None:
    one = start("--host", "::1")
    assert f"http://[::1]:{one.port}" in one.log()
    assert one.good()["model"] == "yoso"
