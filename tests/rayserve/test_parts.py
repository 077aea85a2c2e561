"""What needs no Ray: calls through the application, prices, the choice of a replica, metrics, autoscaling."""

import asyncio
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import calibrations
import httpx
import pytest
import tiny
from engines import started, until
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from attenuator.bundle import read_manifest
from attenuator.rayserve.autoscaling import ARRIVED_S, BUSY_SHARE, QUEUE_S, PredictedQueue
from attenuator.rayserve.calls import REPLICA_HEADER, Answer, Call, deadline_of, run, settings_of
from attenuator.rayserve.outstanding import Outstanding, by_work
from attenuator.rayserve.prices import UNKNOWN_S, Prices, prices_of
from attenuator.rayserve.scraping import merged
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app, observe
from attenuator.serve.events import CLIENT_LEFT
from attenuator.serve.settings import ServeSettings

TEXT = "good film " * 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("ray") / "yoso", "yoso")


@pytest.fixture(scope="module")
def prices(folder: Path) -> Prices:
    """As a front gets them: of an engine, through pickle."""

    async def priced() -> Prices:
        async with started(folder) as (engine, _):
            received: Prices = pickle.loads(pickle.dumps(prices_of(engine)))
            return received

    return asyncio.run(priced())


def scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


JSON = [(b"content-type", b"application/json")]
REQUESTS = [
    ("POST", "/v1/classify", {"inputs": "good film", "seed": 3, "num_hashes": 8}),
    ("POST", "/v1/classify", {"inputs": "good film", "num_hashes": -8}),
    ("POST", "/v1/classify", {"inputs": "good film", "num_hashs": 8}),
    ("POST", "/v1/classify", {"model": "other", "inputs": "good film"}),
    ("POST", "/predict", {"inputs": "good film"}),
    ("POST", "/v1/nothing", {}),
    ("PUT", "/v1/classify", {}),
    ("GET", "/v1/models", None),
    ("HEAD", "/health/ready", None),
]


def test_a_call_is_answered_as_the_service_answers(folder: Path) -> None:
    async def scenario() -> None:
        settings = ServeSettings(threads=1)
        async with started(folder) as (engine, _):
            app: ASGIApp = create_app(engine, settings, KeyRing(None, None, None))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                for method, path, fields in REQUESTS:
                    expected = await client.request(method, path, json=fields)
                    body = b"" if fields is None else json.dumps(fields).encode()
                    call = Call(scope(method, path), JSON, body, 0.0, "front")
                    status, headers, content = await run(app, pickle.loads(pickle.dumps(call)))
                    assert status == expected.status_code, path
                    names = {name.decode() for name, _ in headers}
                    assert names == set(expected.headers), path
                    if method != "HEAD":  # whose body the server leaves out
                        assert without_times(content) == without_times(expected.content), path

    asyncio.run(scenario())


def without_times(content: bytes) -> Any:
    if not content:
        return content
    fields = json.loads(content)
    if isinstance(fields, dict):
        fields.pop("timing_ms", None)
    return fields


def test_a_replica_has_no_admin_routes_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENUATOR_ADMIN_KEY", "admin-key-of-some-length")
    monkeypatch.setenv("ATTENUATOR_API_KEY", "api-key-of-some-length")
    assert ServeSettings().admin_key is not None
    settings = settings_of({"threads": 1})
    assert (settings.admin_key, settings.threads) == (None, 1)
    assert settings.api_key is not None


def test_an_answer_keeps_its_headers_but_those_of_the_connection() -> None:
    headers = [(b"content-type", b"text/plain"), (b"X-Request-Id", b"a"), (b"connection", b"close"), (b"a", b"b")]
    response = Answer(418, headers, b"body", "r1").response()
    assert (response.status_code, response.body) == (418, b"body")
    assert dict(response.headers) == {"content-type": "text/plain", "a": "b", REPLICA_HEADER.lower(): "r1"}


def test_prices_rise_with_knob_length_and_number_of_inputs(prices: Prices) -> None:
    def seconds(**fields: Any) -> float:
        return prices.seconds(fields, len(json.dumps(fields)))

    cheap = seconds(inputs=TEXT, num_hashes=1)
    assert seconds(inputs=TEXT, num_hashes=64) > 2 * cheap
    assert seconds(inputs=TEXT * 20, num_hashes=1) > 2 * cheap
    assert seconds(inputs=[TEXT] * 5, num_hashes=1) == pytest.approx(5 * cheap)
    assert seconds(input=TEXT, model="yoso", num_hashes=1) == cheap, "as other servers call it"


@pytest.mark.parametrize(("flags", "hashes"), [({}, 4), ({"default": "exact"}, 0)], ids=["goal", "exact"])
def test_what_sets_nothing_costs_what_its_default_does(
    folder: Path, tmp_path: Path, flags: dict[str, Any], hashes: int
) -> None:
    content = calibrations.calibration(
        read_manifest(folder).revision,
        [8192],
        [({"num_hashes": 0}, [1000]), ({"num_hashes": 4}, [995])],
        default_agreement=0.99,
    )
    calibrations.write(Path(shutil.copytree(folder, tmp_path / "yoso")), content)

    async def priced() -> Prices:
        async with started(tmp_path / "yoso", **flags) as (engine, _):
            return prices_of(engine)

    prices = pickle.loads(pickle.dumps(asyncio.run(priced())))
    usual, named, other = (
        prices.seconds({"inputs": TEXT} | each, 100) for each in ({}, {"num_hashes": hashes}, {"num_hashes": 64})
    )
    assert usual == named != other


@pytest.mark.parametrize(
    "fields", [{}, {"inputs": 7}, {"inputs": "a", "num_hashes": "many"}, {"model": 7}, {"model": "other", "inputs": []}]
)
def test_what_will_be_refused_has_a_price_all_the_same(prices: Prices, fields: dict[str, Any]) -> None:
    assert 0 < prices.seconds(fields, 100) < 1
    assert Prices().seconds(fields, 100) == UNKNOWN_S


@pytest.mark.parametrize("timeout_ms", [10**400, 1e400, 0, -1, True, "5", None], ids=lambda value: str(value)[:5])
def test_a_deadline_that_will_be_refused_is_none(timeout_ms: Any) -> None:
    assert deadline_of({"timeout_ms": timeout_ms}) is None
    assert deadline_of({"timeout_ms": 20}) == 20


def test_requests_go_where_the_least_predicted_work_is() -> None:
    """One long request weighs as much as many short ones, which a count of requests does not see."""
    outstanding, idle = Outstanding(), {"a": {}, "b": {}}
    outstanding.begin(0, 1.0)
    outstanding.send(0, "a")
    for number in range(1, 10):
        [first, _] = by_work(idle.items(), outstanding, "front", ())
        assert first == "b"
        outstanding.begin(number, 0.1)
        outstanding.send(number, first)
    outstanding.end(0)
    assert by_work(idle.items(), outstanding, "front", ()) == ["a", "b"]


def test_work_of_other_fronts_counts_and_replicas_that_failed_come_last() -> None:
    outstanding = Outstanding()
    reported = {"a": {"this": 9.0, "other": 0.5}, "b": {"this": 9.0, "other": 0.7}}
    assert by_work(reported.items(), outstanding, "this", ()) == ["a", "b"]
    assert by_work(reported.items(), outstanding, "this", {"a"}) == ["b", "a"]
    assert by_work({"a": {}}.items(), outstanding, "this", {"a"}) == ["a"]
    outstanding.begin(1, 1.0)
    outstanding.send(1, "a")
    assert by_work(reported.items(), outstanding, "this", ()) == ["b", "a"]
    outstanding.send(1, "b")
    assert by_work(reported.items(), outstanding, "this", ()) == ["a", "b"]


def test_a_call_that_has_ended_weighs_nothing_whatever_the_router_says_later() -> None:
    outstanding = Outstanding()
    for call, seconds in ((1, 0.1), (2, 0.2), (3, 0.3)):
        outstanding.begin(call, seconds)
        outstanding.send(call, "a")
    outstanding.begin(4, 1.0)  # cancelled before it was sent
    outstanding.end(4)
    outstanding.end(2)
    outstanding.send(2, "a")
    assert outstanding.seconds("a", {}, "this") == pytest.approx(0.4)
    outstanding.end(1)
    outstanding.end(3)
    assert outstanding.seconds("a", {}, "this") == 0


def test_metrics_of_replicas_are_one_page() -> None:
    page = '# HELP a_total Things.\n# TYPE a_total counter\na_total{{kind="x"}} {}\n# TYPE g gauge\ng 2.5\n'
    text = merged({"r1": page.format(3), "r2": page.format(4)}).decode()
    assert text.count("# TYPE a_total counter") == 1
    values = {
        (sample.name, sample.labels["replica"], sample.labels.get("kind")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values == {
        ("a_total", "r1", "x"): 3,
        ("a_total", "r2", "x"): 4,
        ("g", "r1", None): 2.5,
        ("g", "r2", None): 2.5,
    }


@pytest.mark.parametrize(
    ("queue_s", "arrived", "replicas"),
    [([0.0], [0.0], 0), ([1.0, 3.0], [0.0, 0.0], 8), ([0.0, 0.0], [0.8, 0.8], 1.6 / BUSY_SHARE), ([], [], 0)],
    ids=["idle", "backlog", "busy", "nothing-reported"],
)
def test_replicas_follow_the_work(queue_s: list[float], arrived: list[float], replicas: float) -> None:
    metrics = {QUEUE_S: dict(enumerate(queue_s)), ARRIVED_S: dict(enumerate(arrived))}
    number, state = PredictedQueue(target_queue_s=0.5)(SimpleNamespace(aggregated_metrics=metrics))
    assert number == pytest.approx(replicas)
    assert state == {}


def test_a_cancelled_call_stops_its_work_and_counts_as_a_client_that_left(folder: Path) -> None:
    async def scenario() -> None:
        settings = ServeSettings(threads=1)
        async with started(folder) as (engine, _):
            metrics = observe(engine, settings)
            app = create_app(engine, settings, KeyRing(None, None, None), metrics)
            fields = {"inputs": "good film " * 4000, "num_hashes": 0}  # heavy on a fast machine as well
            call = Call(scope("POST", "/v1/classify"), JSON, json.dumps(fields).encode(), 0.0, "front")
            answering = asyncio.create_task(run(app, call))
            await until(lambda: engine.running("heavy") == 1)
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering
            await until(lambda: engine.running("heavy") == 0 and not engine.requests)
            text, _ = await metrics.exposition("")
            assert f'status="{CLIENT_LEFT}"' in text.decode()

    asyncio.run(scenario())
