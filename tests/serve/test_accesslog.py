"""The access log has one line per request, in text and JSON, and never a text, a key or a path."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from service import GOOD, Service, dumped, request_bytes

KEY = {"Authorization": "Bearer sesame-key"}
SECRETS = ("sesame", "wrongkey", "good film", "private")


def access_lines(one: Service) -> list[dict[str, Any]]:
    """The JSON lines of the access log."""
    lines = [json.loads(line) for line in one.log().splitlines()]
    return [line for line in lines if line["logger"] == "attenuator.access"]


def test_every_request_has_one_line_with_what_it_cost(start: Callable[..., Service]) -> None:
    one = start("--log-format", "json", "--api-key", "sesame-key", "--max-requests", "5", "--body-timeout-ms", "300")

    def post(content: bytes, path: str = "/v1/classify", **headers: str) -> int:
        return one.client.post(path, content=content, headers={**KEY, "X-Request-Id": "r-1", **headers}).status_code

    assert post(dumped()) == 200
    assert post(dumped(), Authorization="Bearer wrongkey") == 401
    assert post(dumped(num_hashes=9999)) == 422
    assert post(b"{") == 400
    assert post(b" " * 5_000_000) == 413
    assert post(dumped(), **{"Content-Type": "text/plain"}) == 415
    assert post(dumped(), path="/private/sesame-key?inputs=good%20film") == 404
    assert post(dumped(), path="/v1/models") == 405
    stalled = request_bytes(dumped(), length=5000).replace(b"Host", b"Authorization: Bearer sesame-key\r\nHost")
    assert one.raw(stalled)[0] == 408
    one.wait_for_log('"status": 408')
    lines = access_lines(one)
    assert [line["status"] for line in lines] == [200, 401, 422, 400, 413, 415, 404, 405, 408]
    served, *refused = lines
    assert (served["method"], served["route"], served["model"]) == ("POST", "/v1/classify", "yoso")
    assert (served["knobs"], served["inputs"], served["request_id"]) == ({"num_hashes": 8}, 1, "r-1")
    assert served["tokens"] > 0
    assert set(served["timing_ms"]) == {"tokenize", "queue", "compute", "total"}
    assert served["duration_ms"] >= served["timing_ms"]["compute"]
    assert [line["error_type"] for line in refused] == [
        "unauthorized",
        "knob_out_of_range",
        "malformed_body",
        "body_too_large",
        "unsupported_media_type",
        "not_found",
        "method_not_allowed",
        "body_timeout",
    ]
    assert {line["level"] for line in lines} == {"info"}
    assert not any(secret in one.log() for secret in SECRETS)


def test_lines_in_text_name_every_field(start: Callable[..., Service]) -> None:
    one = start()
    assert one.client.post("/v1/classify", json=GOOD, headers={"X-Request-Id": "r-7"}).status_code == 200
    one.wait_for_log("attenuator.access")
    [line] = [line for line in one.log().splitlines() if "attenuator.access" in line]
    assert " INFO attenuator.access [r-7]: POST /v1/classify 200 " in line
    for part in ("model=yoso", "knobs.num_hashes=8", "inputs=1", "tokens=", "timing_ms.queue="):
        assert part in line
    assert "good film" not in line


@pytest.mark.parametrize("level", ["info", "debug"])
def test_health_is_logged_at_debug(start: Callable[..., Service], level: str) -> None:
    one = start("--log-format", "json", "--log-level", level)
    one.client.get("/health/ready")
    one.client.get("/docs")
    one.wait_for_log("/docs")
    routes = [line["route"] for line in access_lines(one)]
    assert routes == (["/docs"] if level == "info" else ["/health/ready", "/docs"])


def test_client_that_left_has_a_line_too(start: Callable[..., Service]) -> None:
    one = start("--log-format", "json")
    with socket.create_connection((one.host, one.port)) as connection:
        connection.sendall(request_bytes(dumped(), length=5000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # a reset
    one.wait_for_log('"status": 499')
    assert len(access_lines(one)) == 1
