"""Web pages may call the service where the setting names their origin, and read errors as well; not by default."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from service import GOOD, Service

ORIGIN = "https://app.example:8443"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


@pytest.fixture(scope="module")
def shared(bundles: dict[str, Path]) -> Iterator[Service]:
    one = Service([bundles["yoso"]], "--cors-origins", f"https://b.example, {ORIGIN}", "--api-key", "k")
    yield one
    one.stop()


def test_preflight_of_a_named_origin_is_answered_without_a_key(shared: Service) -> None:
    answer = shared.client.options("/v1/classify", headers={"Origin": ORIGIN, **PREFLIGHT})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert "authorization" in answer.headers["Access-Control-Allow-Headers"].lower()
    other = shared.client.options("/v1/classify", headers={"Origin": "https://evil.example", **PREFLIGHT})
    assert other.status_code == 400
    assert "Access-Control-Allow-Origin" not in other.headers


def test_answers_and_errors_are_readable_for_a_named_origin_alone(shared: Service) -> None:
    key = {"Authorization": "Bearer k"}
    for path, headers, status in (("/v1/classify", key, 200), ("/v1/classify", {}, 401), ("/nowhere", key, 404)):
        answer = shared.client.post(path, json=GOOD, headers={"Origin": ORIGIN, **headers})
        assert answer.status_code == status
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "x-request-id" in answer.headers["Access-Control-Expose-Headers"].lower()
        assert "Origin" in answer.headers["Vary"]
        other = shared.client.post(path, json=GOOD, headers={"Origin": "https://evil.example", **headers})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_no_origin_may_by_default(service: Service) -> None:
    answer = service.client.options("/v1/classify", headers={"Origin": ORIGIN, **PREFLIGHT})
    assert answer.status_code == 405
    answer = service.client.post("/v1/classify", json=GOOD, headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_any_origin_may_with_an_asterisk(start: Callable[..., Service]) -> None:
    one = start("--cors-origins", "*")
    assert one.client.post("/v1/classify", json={"inputs": "a"}, headers={"Origin": ORIGIN}).status_code == 200
    assert one.client.get("/v1/models", headers={"Origin": ORIGIN}).headers["Access-Control-Allow-Origin"] == "*"
