"""The dashboard and the alerts ask for what a service exports, and Prometheus understands them."""

import shutil
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
import yaml
from benchmarks.measure.processes import free_port
from chart import CHART, WITHOUT_HELM, rendered
from monitoring import (
    DESCRIBED,
    MONITORING,
    Exported,
    Question,
    alert_questions,
    ask,
    complaints,
    dashboard_questions,
)
from service import Service

# Without a value where nothing has failed, and where no scrape found anything in the queue.
MAY_BE_EMPTY = (
    *("batch_failures", "lane_restarts", "session_restarts", "cancelled", "shadow_dropped"),
    *("attenuator_queue_tokens", "attenuator_queue_predicted", "attenuator_key_queue_predicted"),
)
SCRAPED = 'sum_over_time(up{job="attenuator"}[1m]) > 2'
UNPACKED = MONITORING.parents[1] / "build/tools/prometheus/usr/bin/prometheus"  # by .ci/run
PROMETHEUS = shutil.which("prometheus") or (str(UNPACKED) if UNPACKED.exists() else None)


def test_queries_name_what_a_running_server_exports(exported: Exported) -> None:
    questions = [*dashboard_questions(), *alert_questions()]
    assert len(questions) > 40
    assert [text for question in questions for text in complaints(question, exported)] == []


def test_dashboard_shows_most_of_what_is_exported() -> None:
    asked = "\n".join(question.expression for question in dashboard_questions())
    left_out = {name for name in DESCRIBED if name not in asked}
    assert left_out == {
        "attenuator_sequences_total",
        "attenuator_key_requests_total",
        "attenuator_escalated_requests_total",
        "attenuator_service_state",
        "attenuator_shadow_waiting_texts",
    }


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("attenuator_reddy", "no metric attenuator_reddy"),
        ('attenuator_ready{model="yoso"}', "attenuator_ready has no label model"),
        ('attenuator_requests_total{chosen_by="nobody"}', "chosen_by is never nobody"),
        ("sum by (lane) (rate(attenuator_requests_total[1m]))", "lane is grouped by and is nowhere"),
        ("sum by (model) (attenuator_models)", "device is shown and not in the result"),
    ],
    ids=["metric", "label", "value", "group", "legend"],
)
def test_what_is_not_exported_is_found(exported: Exported, expression: str, complaint: str) -> None:
    question = Question("q", expression, frozenset({"device"} if "shown" in complaint else ()))
    assert list(complaints(question, exported)) == [f"q: {complaint}"]


@WITHOUT_HELM
def test_scaler_asks_for_metrics_that_a_running_server_exports(exported: Exported) -> None:
    adapter = yaml.safe_load((CHART.parent / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]
    metrics = rendered("cpu")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert {one["pods"]["metric"]["name"] for one in metrics} == {rule["name"]["as"] for rule in adapter}
    triggers = rendered("everything")["ScaledObject"]["spec"]["triggers"]
    expressions = [trigger["metadata"]["query"] for trigger in triggers]
    for rule in adapter:
        series = rule["seriesQuery"].partition("{")[0]
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", "pod")
        expressions.append(query.replace("<<.LabelMatchers>>", 'namespace="here"'))
    assert len(expressions) == 4
    assert [text for one in expressions for text in complaints(Question(one, one, frozenset()), exported)] == []


@pytest.fixture(scope="module")
def prometheus(busy: Service, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Prometheus with the settings of compose.yaml, which scrapes the running server all the time."""
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed (Debian's package prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "400ms", "evaluation_interval": "400ms"}
    settings["rule_files"] = [str(MONITORING / "rules.yml")]
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [f"{busy.host}:{busy.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    command = [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    # Prometheus looks for targets every 5 s.
    command.append("--scrape.discovery-reload-interval=100ms")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10)
    yield client, folder / "log"
    client.close()
    process.terminate()
    process.wait(timeout=30)


def results(client: httpx.Client, expression: str) -> list[Any]:
    """What Prometheus answers to a query now; nothing while it starts."""
    try:
        answer = client.get("/query", params={"query": expression})
    except httpx.TransportError:
        return []
    assert answer.status_code in (200, 503), f"{expression}: {answer.text}"
    return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


def wait_for_answers(prometheus: Any, expressions: Iterable[str]) -> None:
    """Waits until each has an answer: on a busy machine a scrape may fail, and its series are gone until the next."""
    client, log = prometheus
    end = time.monotonic() + 30
    while empty := [expression for expression in expressions if not results(client, expression)]:
        assert time.monotonic() < end, f"no answer to {empty}: {log.read_text()}"
        time.sleep(0.1)


def test_prometheus_answers_every_query_from_a_running_server(prometheus: Any, busy: Service) -> None:
    wait_for_answers(prometheus, [SCRAPED])
    ask(busy)
    asked = [one.expression for one in dashboard_questions()]
    wait_for_answers(prometheus, [one for one in asked if not any(part in one for part in MAY_BE_EMPTY)])


def test_prometheus_evaluates_every_alert_and_none_fires(prometheus: Any, busy: Service) -> None:
    wait_for_answers(prometheus, [SCRAPED])
    rules = [rule for group in prometheus[0].get("/rules").json()["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {one.name for one in alert_questions()}
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
