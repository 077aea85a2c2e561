"""The metrics of a service under load are those that are documented, and they add up."""

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service import GOOD, Service, request_bytes

from attenuator.ops import KNOBS
from attenuator.serve.events import Listeners
from attenuator.serve.observe import metrics as module
from attenuator.serve.observe.metrics import Metrics, knob_range, knob_ranges
from attenuator.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(attenuator_\w+)` \| (\w+) \| (.*?) \|", re.M)
PROCESS = re.compile(r"`(process_\w+)`")
Samples = dict[str, list[tuple[dict[str, str], float]]]


def scrape(service: Service, **headers: str) -> tuple[dict[str, str], Samples]:
    """Kind by metric, and values by series."""
    answer = service.client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    kinds: dict[str, str] = {}
    samples: Samples = {}
    for family in text_string_to_metric_families(answer.text):
        counts = family.type == "counter" and not family.name.endswith("_total")
        kinds[family.name + ("_total" if counts else "")] = family.type
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return kinds, samples


def total(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for own, value in samples.get(name, []) if labels.items() <= own.items())


@pytest.fixture(scope="module")
def loaded(bundles: dict[str, Path]) -> Service:
    """A server that has answered, refused and dropped requests."""
    one = Service([bundles["yoso"], bundles["softmax"]], "--threads", "1")
    bodies = [GOOD | {"num_hashes": value} for value in (0, 8, 32, 8)] * 5
    bodies += [{"model": "softmax", "inputs": ["good", "bad film"]}] * 5
    with ThreadPoolExecutor(8) as threads:
        assert {answer.status_code for answer in threads.map(one.classify, bodies)} == {200}
    assert one.classify(GOOD | {"num_hashes": "secret"}).status_code == 422
    assert one.classify({"model": "a secret model", "inputs": "good"}).status_code == 404
    assert one.classify(GOOD | {"inputs": "good film " * 3000, "num_hashes": 512, "timeout_ms": 1}).status_code == 504
    assert one.client.get("/a/secret/path").status_code == 404
    assert one.raw(request_bytes(b"", method="S\x00CRET"))[0] == 400
    yield one
    assert one.stop() == 0


def test_documented_metrics_are_served_and_no_others(loaded: Service) -> None:
    kinds, samples = scrape(loaded)
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(page)}
    own = {name: kind for name, kind in kinds.items() if name.startswith("attenuator_")}
    assert own == {name: kind for name, (kind, _) in documented.items()}
    assert {name for name in kinds if name not in own} == set(PROCESS.findall(page))
    for name, (_, labels) in documented.items():
        for series, rows in samples.items():
            if re.fullmatch(rf"{name}(_bucket|_sum|_count)?", series):
                assert all(set(own) - {"le"} == labels for own, _ in rows), series


@pytest.mark.parametrize("name", ["shadow_texts_total", "agreement_low"])
def test_live_agreement_is_said_to_be_with_the_bundles_own_exact_answers(name: str) -> None:
    """Those of a rounded bundle are rounded, too: that is no agreement with the checkpoint."""
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith(f"| `attenuator_{name}`")]
    assert "the bundle's own exact" in row


def test_metrics_add_up(loaded: Service) -> None:
    _, samples = scrape(loaded)
    answered = "attenuator_requests_total"
    assert total(samples, answered) == 25
    assert total(samples, answered, model="yoso", chosen_by="caller", knobs="num_hashes=5-16") == 10
    assert total(samples, answered, model="yoso", knobs="num_hashes=exact") == 5
    assert total(samples, answered, model="softmax", chosen_by="default", knobs="none") == 5
    assert total(samples, "attenuator_sequences_total", model="softmax") == 10
    for phase in ("tokenize", "queue", "compute"):
        assert total(samples, f"attenuator_{phase}_seconds_count") == 25
    assert total(samples, "attenuator_batch_sequences_sum", model="softmax") == 10
    assert total(samples, "attenuator_batch_tokens_sum", model="yoso") == total(
        samples, "attenuator_tokens_total", model="yoso"
    )
    assert total(samples, "attenuator_batch_predicted_seconds_total") > 0
    assert total(samples, "attenuator_http_requests_total", route="/v1/classify", status="200") == 25
    assert total(samples, "attenuator_http_requests_total", route="(none)", status="404") == 1
    refusals = {labels["error_type"]: value for labels, value in samples["attenuator_refusals_total"]}
    assert refusals == {
        "knob_out_of_range": 1,
        "unknown_model": 1,
        "deadline_exceeded": 1,
        "not_found": 1,
        "malformed_request": 1,
    }
    assert total(samples, "attenuator_cancelled_requests_total", model="yoso", reason="deadline") == 1
    assert total(samples, "attenuator_models") == 2
    assert total(samples, "attenuator_ready") == 1
    assert total(samples, "attenuator_service_state", state="ready") == 1
    assert total(samples, "attenuator_connections") >= 1


def test_no_label_holds_what_a_caller_wrote(loaded: Service) -> None:
    assert "secret" not in loaded.client.get("/metrics").text.lower()


def test_openmetrics_is_served_to_who_accepts_it(loaded: Service) -> None:
    accepted = "application/openmetrics-text; version=1.0.0"
    answer = loaded.client.get("/metrics", headers={"Accept": accepted})
    assert answer.headers["Content-Type"].startswith(accepted)
    assert answer.text.endswith("# EOF\n")
    assert loaded.client.head("/metrics").status_code == 200


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/plain;version=y.z", "*/*;q=z", ""])
def test_any_accept_header_is_answered(loaded: Service, accept: str) -> None:
    answer = loaded.client.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert "attenuator_ready 1.0" in answer.text


def test_scrapes_at_the_same_time_are_written_once() -> None:
    metrics = Metrics()
    reads: list[int] = []
    metrics.before_scrape.append(lambda: reads.append(1))

    async def scenario() -> None:
        scrapes = await asyncio.gather(*(metrics.exposition("text/plain") for _ in range(5)))
        assert len({text for text, _ in scrapes}) == 1
        assert len(reads) == 1
        await metrics.exposition("text/plain")
        assert len(reads) == 2

    asyncio.run(scenario())


def test_metrics_may_need_a_key_or_be_off(start: Callable[..., Service]) -> None:
    one = start("--metrics", "key", "--api-key", "sesame")
    assert one.client.get("/metrics").status_code == 401
    assert total(scrape(one, Authorization="Bearer sesame")[1], "attenuator_ready") == 1
    assert start("--metrics", "off").client.get("/metrics").status_code == 404


def test_a_key_for_metrics_must_be_there() -> None:
    with pytest.raises(ValueError, match="there is no API key"):
        ServeSettings(metrics="key")


def test_every_service_counts_for_itself() -> None:
    first, second = Metrics(), Metrics()
    first.refused("not_found")
    name, labels = "attenuator_refusals_total", {"error_type": "not_found"}
    assert (first.registry.get_sample_value(name, labels), second.registry.get_sample_value(name, labels)) == (1, None)


def test_a_failed_request_counts_as_nothing_answered() -> None:
    metrics = Metrics()
    metrics.request_ended("/v1/classify", 500, 0.1, {"model": "m", "knobs": {}, "error_type": "engine_error"})
    assert metrics.registry.get_sample_value("attenuator_refusals_total", {"error_type": "engine_error"}) == 1
    assert "attenuator_requests_total{" not in asyncio.run(metrics.exposition(""))[0].decode()


@pytest.mark.parametrize("requests", [1, module.MOST_UNCOUNTED])
def test_requests_are_counted_without_a_scrape(requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and at once where many wait; one that cannot be counted takes no other with it."""
    monkeypatch.setattr(module, "COUNT_EVERY_S", 0.01 if requests == 1 else 3600)
    metrics, listeners = Metrics(), Listeners()
    metrics.listen(listeners)
    [tell] = listeners.request_ended

    async def scenario() -> None:
        tell("/v1/classify", 200, 0.1, {"timing_ms": {}})
        for _ in range(requests):
            tell("/v1/classify", 404, 0.1, {})
        assert metrics.registry.get_sample_value(name, labels) == (None if requests == 1 else requests - 1)
        await asyncio.sleep(0.1)

    name, labels = "attenuator_http_requests_total", {"route": "/v1/classify", "status": "404"}
    asyncio.run(scenario())
    assert metrics.registry.get_sample_value(name, labels) == (1 if requests == 1 else requests - 1)


@pytest.mark.parametrize("name", sorted(KNOBS))
def test_ranges_are_few_and_hold_their_values(name: str) -> None:
    knob = KNOBS[name]
    whole = knob.dtype == "int32"
    steps = range(int(knob.low), int(knob.high) + 1) if whole else np.linspace(knob.low, knob.high, 1000).tolist()
    ranges = set()
    for value in steps:
        text = knob_range(name, value)
        ranges.add(text)
        if text == "exact":
            assert value == knob.exact
        else:
            lowest, _, highest = text.partition("-")
            assert float(lowest) <= value <= float(highest or lowest)
    assert 2 <= len(ranges) <= 10
    assert "exact" in ranges
    assert knob_ranges({name: knob.exact}) == f"{name}=exact"
