"""The tables of `attention_error.py` in benchmarks/operators/attention_error.md; standard library only."""

from collections.abc import Iterator, Sequence

from benchmarks.report.contenders import place, shown
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Row, read, select
from benchmarks.report.tables import table

HEADINGS = {"drawn": "### On drawn queries, keys and values"}
BOUND_TOKENS = 256  # long enough to differ, short enough that every estimator samples
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
    named = {(set_to(row), row["n"]): row for row in rows}
    body = [[name, *(figure(named.get((name, n))) for n in lengths)] for name in dict.fromkeys(map(set_to, rows))]
    exact = {line[0] for line in body if not set(line[1:]) - {"0", ""}}
    values: dict[str, list[str]] = {}
    for row in {set_to(row): row for row in rows if set_to(row) in exact}.values():
        values.setdefault(knob_of(row), []).append(f"{row['value']:g}")
    left_out = "; ".join(f"{name} {', '.join(found)}" for name, found in values.items())
    text = table(["attention", *(f"{n:,}" for n in lengths)], [line for line in body if line[0] not in exact])
    return f"{text}\n\nExact at each of these lengths: {left_out}." if exact else text


def knob_of(row: Row) -> str:
    """An attention with its settings and the name of its knob."""
    return f"{shown(row)}, {row['knob']}"


def set_to(row: Row) -> str:
    """The same with the knob's value."""
    return f"{knob_of(row)} {row['value']:g}"


def bounds(rows: Sequence[Row]) -> Iterator[str]:
    """What an operator's bound allows beside what is measured, by knob value; and how near any row comes to it."""
    having = [row for row in rows if "of_bound" in row]
    if not having:
        return
    values = sorted({row["value"] for row in having})
    knob, attention = having[0]["knob"], having[0]["attention"]
    heads = [f"{knob} {value:g}" for value in values]
    yield "### The bound"
    yield (
        f"`{attention}` at {BOUND_TOKENS} tokens: the relative error that the bound of {knob} allows if every row "
        "has as much as it may, and what is measured of each estimator:"
    )
    short = select(having, n=BOUND_TOKENS)
    body = []
    for source in dict.fromkeys(row["inputs"] for row in short):
        mine = {(shown(row), row["value"]): row for row in select(short, inputs=source)}
        allowed = {row["value"]: row["allowed"] for row in mine.values()}
        body.append([f"{source}: allowed", *(f"{allowed[value]:.2f}" for value in values)])
        for name in dict.fromkeys(name for name, _ in mine):
            cells = [mine.get((name, value)) for value in values]
            body.append([f"{source}: {name}", *(f"{row['error']:.3f}" if row else "" for row in cells)])
    yield table(["inputs", *heads], body)
    yield "The largest mean error of a row of a head, over all lengths, as a share of its bound (below 1: kept):"
    body = []
    for source, name in dict.fromkeys((row["inputs"], shown(row)) for row in having):
        mine = [row for row in select(having, inputs=source) if shown(row) == name]
        largest = [max(row["of_bound"] for row in select(mine, value=value)) for value in values]
        body.append([f"{source}: {name}", *(f"{value:.3f}" for value in largest)])
    yield table(["inputs", *heads], body)


def attention_error() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "attention_error.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.operators.attention_error` measures it."
    result = read(path)
    rows = sorted(result["rows"], key=lambda row: (place(row), row["knob"], row["value"]))
    parts = [
        f"Computed on an {result['machine']['processor']} ({ISA_NAMES[result['isa']]}), {result['seeds']} seeds, "
        f"{commit(*rows)}, by `{result['command']}`."
    ]
    for source in dict.fromkeys(row["inputs"] for row in result["rows"]):
        parts += [HEADINGS.get(source, MODEL.format(source)), by_length(select(rows, inputs=source))]
    return "\n\n".join([*parts, *bounds(rows)])
