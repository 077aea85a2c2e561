"""What goes wrong before a model is asked, in the form and with the status of each protocol."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from service import Service

from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

KEYS = json.dumps([{"name": "plain", "key": "plain-key"}, {"name": "slow", "key": "slow-key", "requests_per_s": 1e-6}])
TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good film"]}
PREDICT, CLASSIFY, INFER = "/predict", "/classify", "/v2/models/yoso/infer"
GOOD: dict[str, dict[str, Any]] = {
    PREDICT: {"inputs": "good film"},
    CLASSIFY: {"input": "good film"},
    INFER: {"inputs": [TEXT]},
}
WAYS = list(GOOD)


def check(path: str, answer: httpx.Response, status: int, kind: str, part: str) -> None:
    """Compares an answer with what the protocol of a path has for a status.

    Args:
        path: of the route.
        answer: what came.
        status: of it.
        kind: of the service's own errors.
        part: of the sentence.
    """
    assert answer.status_code == status, answer.text
    body = answer.json()
    if path == CLASSIFY:
        assert set(body) == {"error"}
        sentence, code = body["error"]["message"], body["error"]["code"]
        assert code == status
        assert body["error"]["type"].endswith("Error")
    else:
        sentence = body["error"]
        assert set(body) == {"error", "error_type", "param", "allowed"}
        expected = {424: "Backend", 429: "Overloaded", 503: "Unhealthy", 504: "Backend"}.get(status, "Validation")
        assert body["error_type"] == (expected if path == PREDICT else kind)
    assert part in sentence


@pytest.fixture(scope="module")
def keyed(bundles: dict[str, Path]) -> Iterator[Service]:
    one = Service([bundles["yoso"]], "--threads", "1", "--api-keys", KEYS, "--max-body-bytes", "3000")
    one.client.headers["Authorization"] = "Bearer plain-key"
    yield one
    one.stop()


@pytest.mark.parametrize("path", WAYS)
def test_keys_and_limits(keyed: Service, path: str) -> None:
    def post(key: str | None = None, **changes: Any) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return keyed.client.post(path, json=GOOD[path] | changes, headers=headers)

    assert post().status_code == 200
    wrong = post("nobody's")
    check(path, wrong, 401, "unauthorized", "the API key is wrong")
    assert wrong.headers["WWW-Authenticate"] == "Bearer"
    large = keyed.client.post(path, content=json.dumps(GOOD[path]) + " " * 3000)
    check(path, large, 413, "body_too_large", "at most 3000 bytes")
    assert large.headers["Connection"] == "close"
    check(path, keyed.client.post(path, content=b"{"), 400, "malformed_body", "is not JSON")
    form = keyed.client.post(path, content="inputs=a", headers={"Content-Type": "application/x-www-form-urlencoded"})
    check(path, form, 415, "unsupported_media_type", "application/json")
    late = post(timeout_ms=0.001) if path != INFER else post(parameters={"timeout_ms": 0.001})
    field = "timeout_ms" if path != INFER else "parameters.timeout_ms"
    check(path, late, 504, "deadline_exceeded", f"0.001 ms ({field})")
    zipped = keyed.client.post(path, json=GOOD[path], headers={"Content-Encoding": "gzip"})
    check(path, zipped, 400, "malformed_body", "Content-Encoding")
    query = keyed.client.post(f"{path}?num_hashes=3", json=GOOD[path])
    check(path, query, 422 if path == PREDICT else 400, "unknown_field", "query parameters")
    other = "/v2/models/nobody/infer" if path == INFER else path
    changes = {} if path == INFER else {"model": "nobody"}
    unknown = keyed.client.post(other, json=GOOD[path] | changes)
    check(path, unknown, 404, "unknown_model", "model 'nobody' is not served")


def test_rate_of_a_key_counts_for_all_of_them(keyed: Service) -> None:
    headers = {"Authorization": "Bearer slow-key"}
    assert keyed.client.post(PREDICT, json=GOOD[PREDICT], headers=headers).status_code == 200
    for path in WAYS:
        limited = keyed.client.post(path, json=GOOD[path], headers=headers)
        check(path, limited, 429, "rate_limited", "requests per second")
        assert int(limited.headers["Retry-After"]) > 1
    for path in ("/info", "/v2/models/yoso", "/v2/models/yoso/ready"):
        assert keyed.client.get(path, headers={"Authorization": ""}).status_code == 401
        assert keyed.client.get(path).status_code == 200
        assert keyed.client.head(path).status_code == 200
    for path in ("/v2", "/health"):
        assert keyed.client.get(path, headers={"Authorization": ""}).status_code == 200


def in_process(engine: Engine, settings: ServeSettings, ask: Callable[[httpx.AsyncClient], Any]) -> None:
    """Asks an application whose engine has loaded nothing."""
    transport = httpx.ASGITransport(create_app(engine, settings, KeyRing(None, None)))

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await ask(client)

    asyncio.run(scenario())


@pytest.mark.parametrize("path", WAYS)
def test_starting_overloaded_and_failing(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async def starting(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, json=GOOD[path])
        check(path, answer, 503, "not_ready", "the service is starting")
        assert answer.headers["Retry-After"] == "1"
        for other in ("/info", "/health", "/v2/models/yoso", "/v2/models/yoso/ready"):
            assert (await client.get(other)).status_code == 503

    async def overloaded(client: httpx.AsyncClient) -> None:
        engine.state = "ready"
        async with engine.admitted():
            answer = await client.post(path, json=GOOD[path])
        check(path, answer, 429, "overloaded", "1 requests are in progress")
        assert answer.headers["Retry-After"]

    async def failing(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, json=GOOD[path])
        check(path, answer, 424 if path == PREDICT else 500, "internal_error", "its log says why")

    settings = ServeSettings(max_requests=1)
    engine = Engine(settings)
    in_process(engine, settings, starting)
    in_process(engine, settings, overloaded)
    monkeypatch.setattr(engine, "check_open", lambda *of: 1 / 0)
    in_process(engine, settings, failing)
