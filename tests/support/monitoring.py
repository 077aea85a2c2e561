"""What the dashboard and the alerts ask of Prometheus, and whether a service exports what they ask for."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import yaml
from service import GOOD, Service

from attenuator.serve.observe.metrics import GAUGES, Metrics

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DESCRIBED = {one.name: one for one in (*Metrics().described, *GAUGES)}
ADDED = {"instance", "job", "namespace", "pod", "service"}  # to every series, by Prometheus and its operator
SYNTHETIC = "up"  # Prometheus' own, one a target
KEYS = [{"name": name, "key": f"key-of-{name}"} for name in ("search", "crawler")]
LEGEND = re.compile(r"{{ *(?:\$labels\.)?(\w+) *}}")


def ask(service: Service) -> None:
    """Requests of both keys at different knobs, some in brownout, one refused."""
    bodies = [GOOD | {"num_hashes": value} for value in (0, 8, 64)] * 4 + [{"model": "yoso", "inputs": "good"}] * 24
    headers = [{"Authorization": f"Bearer {key['key']}"} for key in KEYS]
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(
            lambda index: service.client.post("/v1/classify", json=bodies[index], headers=headers[index % 2]),
            range(len(bodies)),
        )
    assert {answer.status_code for answer in answers} == {200}
    assert service.classify(GOOD).status_code == 401


class Question(NamedTuple):
    """A query with the labels that the text beside it shows."""

    name: str
    expression: str
    shown: frozenset[str]


def filled(expression: str, window: str = "1m") -> str:
    """A dashboard's query as Grafana sends it, every model and instance chosen."""
    for variable, value in {"$__rate_interval": window, "$instance": ".*", "$model": ".*"}.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, f"{expression}: a variable of Grafana's that no one fills"
    return expression


def dashboard_questions(window: str = "1m") -> list[Question]:
    """Every query of the dashboard."""
    board = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return [
        Question(
            f"{panel['title']} {target['refId']}",
            filled(target["expr"], window),
            frozenset(LEGEND.findall(target["legendFormat"])),
        )
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def alert_questions() -> list[Question]:
    """Every alert's query."""
    groups = yaml.safe_load((MONITORING / "rules.yml").read_text(encoding="utf-8"))["groups"]
    return [
        Question(rule["alert"], rule["expr"], frozenset(LEGEND.findall(" ".join(rule["annotations"].values()))))
        for group in groups
        for rule in group["rules"]
    ]


class Exported(NamedTuple):
    """What a service exports: by series, its labels; by label, its values."""

    labels: Mapping[str, Collection[str]]
    values: Mapping[str, Collection[str]]


def parsed(expression: str) -> Any:
    """A query's tree; the tests fail on one that is not PromQL."""
    return promql.parse(expression)


def selectors(tree: Any) -> list[Any]:
    """Every selector of series in a query."""
    selectors: list[Any] = []
    promql.walk(tree, lambda node: selectors.append(node) if isinstance(node, promql.VectorSelector) else None)
    return selectors


def result_labels(tree: Any, exported: Exported) -> set[str]:
    """The labels that a query's result has."""
    if isinstance(tree, promql.VectorSelector):
        return set(exported.labels.get(tree.name, ())) | ADDED
    if isinstance(tree, promql.MatrixSelector):
        return result_labels(tree.vector_selector, exported)
    if isinstance(tree, promql.AggregateExpr):
        assert tree.modifier is None or tree.modifier.type == promql.AggModifierType.By, "only `by` is understood here"
        return set(tree.modifier.labels) if tree.modifier else set()
    if isinstance(tree, promql.Call):
        labels = [result_labels(argument, exported) for argument in tree.args]
        return set.union(set(), *labels) - ({"le"} if tree.func.name == "histogram_quantile" else set())
    if isinstance(tree, promql.BinaryExpr):
        return result_labels(tree.lhs, exported)
    if isinstance(tree, promql.ParenExpr):
        return result_labels(tree.expr, exported)
    return set()


def complaints(question: Question, exported: Exported) -> Iterator[str]:
    """What a query names that the service does not export."""
    tree = parsed(question.expression)
    for selector in selectors(tree):
        if selector.name != SYNTHETIC and selector.name not in exported.labels:
            yield f"{question.name}: no metric {selector.name}"
            continue
        labels = result_labels(selector, exported)
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                yield f"{question.name}: {selector.name} has no label {matcher.name}"
            known = matcher.name in ADDED or matcher.value in exported.values[matcher.name]
            if matcher.op == promql.MatchOp.Equal and not known:
                yield f"{question.name}: {matcher.name} is never {matcher.value}"
    yield from (f"{question.name}: {label} is grouped by and is nowhere" for label in ungrouped(tree, exported))
    yield from (
        f"{question.name}: {label} is shown and not in the result"
        for label in question.shown - result_labels(tree, exported)
    )


def ungrouped(tree: Any, exported: Exported) -> Iterator[str]:
    """Labels that a query groups by and that what it groups lacks."""
    groups: list[Any] = []
    promql.walk(tree, lambda node: groups.append(node) if isinstance(node, promql.AggregateExpr) else None)
    for group in groups:
        if group.modifier is not None:
            yield from set(group.modifier.labels) - result_labels(group.expr, exported)
