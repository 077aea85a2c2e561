"""The tables of `attention_error.py` in docs/attention-error.md; standard library only."""

import json
from collections.abc import Iterator, Sequence

from attenuator.ops import OPERATORS
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Row, select
from benchmarks.report.tables import table

HEADINGS = {"drawn": "### On drawn queries, keys and values"}
MODEL = "### In the first layer of `examples/bundles/{}`"


def figure(row: Row | None) -> str:
    """Error and angle of one setting."""
    if row is None:
        return ""
    if not row["error"]:
        return "0"
    return f"{row['error']:.3f}, {row['angle']:.2f}"


def by_length(rows: Sequence[Row]) -> str:
    """A line for each value of each knob, a column for each length."""
    lengths = sorted({row["n"] for row in rows})
    named = {(row["attention"], row["knob"], row["value"], row["n"]): row for row in rows}
    body = []
    for attention, knob, value in dict.fromkeys(name[:3] for name in named):
        cells = [figure(named.get((attention, knob, value, n))) for n in lengths]
        body.append([f"`{attention}`, {knob} {value:g}", *cells])
    return table(["attention", *(f"{n:,}" for n in lengths)], body)


def bounds(rows: Sequence[Row]) -> Iterator[str]:
    """By knob value, how near the largest error comes to what an operator promises."""
    having = [row for row in rows if "of_bound" in row]
    if having:
        values = sorted({row["value"] for row in having})
        knob, attention = having[0]["knob"], having[0]["attention"]
        body = []
        for source in dict.fromkeys(row["inputs"] for row in having):
            largest = [max(row["of_bound"] for row in select(having, inputs=source, value=value)) for value in values]
            body.append([source, *(f"{value:.3f}" for value in largest)])
        yield "### The bound"
        yield (
            f"`{attention}`: the largest mean error of a row of a head, over all lengths, as a share of the bound that "
            f"{knob} sets (below 1: kept):"
        )
        yield table(["inputs", *(f"{knob} {value:g}" for value in values)], body)


def attention_error() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "attention_error.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.attention_error` measures it."
    result = json.loads(path.read_text(encoding="utf-8"))
    places = {operator.key: place for place, operator in enumerate(OPERATORS)}
    rows = sorted(result["rows"], key=lambda row: (places.get(row["attention"], 0), row["knob"], row["value"]))
    parts = [
        f"Computed on an {result['machine']['processor']} ({ISA_NAMES[result['isa']]}), {result['seeds']} seeds, "
        f"{commit(*rows)}, by `{result['command']}`."
    ]
    for source in dict.fromkeys(row["inputs"] for row in result["rows"]):
        parts += [HEADINGS.get(source, MODEL.format(source)), by_length(select(rows, inputs=source))]
    return "\n\n".join([*parts, *bounds(rows)])
