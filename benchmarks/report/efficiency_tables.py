"""The tables of `efficiency.py` in docs/efficiency.md, beside the YOSO paper's; standard library only."""

import csv
import json
from collections.abc import Callable, Iterator
from typing import Any

from attenuator.ops import OPERATORS
from benchmarks.report.origins import commit
from benchmarks.report.results_files import FOLDER, ISA_NAMES, RESULTS, Row, select
from benchmarks.report.tables import table, times

PAPER = FOLDER / "paper" / "yoso_appendix_efficiency.csv"
BASELINE = "softmax"
STEPS = {
    "training": "### A training step, forward and backward",
    "inference": "### Inference",
}
Figures = dict[tuple[str, int], float]


def paper() -> list[dict[str, str]]:
    """The paper's rows that have figures."""
    with PAPER.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["ms"]]


def shown(row: Row) -> str:
    """An attention with its knobs."""
    knobs = ", ".join(f"{name} {value:g}" for name, value in row["knobs"].items())
    return f"`{row['attention']}`" + (f", {knobs}" if knobs else "")


def by_length(rows: list[Row], cell: Callable[[Row], str]) -> str:
    """A line for each attention, a column for each length."""
    lengths = sorted({row["n"] for row in rows if "ms" in row})
    named = {(shown(row), row["n"]): row for row in rows}
    body = []
    for name in dict.fromkeys(shown(row) for row in rows):
        cells = [named.get((name, n)) for n in lengths]
        body.append([name, *("" if row is None or "ms" not in row else cell(row) for row in cells)])
    return table(["attention", *(f"{n:,}" for n in lengths)], body)


def number(value: float) -> str:
    """Three digits, or as many as the whole number has."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def compared(rows: list[Row], field: str, column: str) -> str:
    """How many times our figures and the paper's are softmax's of the same length: one line each."""
    ours: Figures = {(row["attention"], row["n"]): row[field] for row in rows if "ms" in row}
    theirs = [row for row in paper() if row["attention"]]
    lengths = sorted({int(row["n"]) for row in theirs})
    body = []
    for key in dict.fromkeys(row["attention"] for row in rows if row["attention"] != BASELINE):
        mine = next(row for row in rows if row["attention"] == key)
        knobs = {f"{name}={value:g}" for name, value in mine["knobs"].items()}
        body.append([f"{shown(mine)}, here", *(_ratio(ours, key, n) for n in lengths)])
        for number_of, batches in (("1", "largest batches"), ("2", "equal batches")):
            figures: Figures = {
                (row["attention"], int(row["n"])): float(row[column])
                for row in theirs
                if row["table"] == number_of and (not row["knobs"] or row["knobs"] in knobs)
            }
            if any(key == name for name, _ in figures):
                body.append([f"the paper's, {batches}", *(_ratio(figures, key, n) for n in lengths)])
    return table(["attention", *(f"{n:,}" for n in lengths)], body)


def _ratio(figures: Figures, key: str, n: int) -> str:
    one, base = figures.get((key, n)), figures.get((BASELINE, n))
    return times(one / base) if one and base else ""


def left_out(rows: list[Row]) -> Iterator[str]:
    """What was not measured, and why."""
    for row in rows:
        if "left_out" in row:
            where = f"from {row['n']:,} tokens on" if row["n"] else "at all"
            yield f"- {shown(row)}, {row['step']}: not measured {where}: {row['left_out']}"


def efficiency() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "efficiency.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.efficiency` measures it."
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    machine = result["machine"]
    places = {operator.key: place for place, operator in enumerate(OPERATORS)}
    rows = sorted(result["rows"], key=lambda row: (places.get(row["attention"], len(places)), row["n"]))
    parts = [
        f"Measured on one core of an {machine['processor']} ({ISA_NAMES[result['isa']]}), fp32, one sequence, CPU "
        f"time; onnxruntime {result['versions']['onnxruntime']}, torch {result['versions']['torch']}, load average "
        f"before the run {result['load_average']:.1f}, {commit(*rows)}, by `{result['command']}`."
    ]
    for step, heading in STEPS.items():
        mine = select(rows, step=step)
        if not mine:
            continue
        parts += [heading, "Milliseconds a sequence, by tokens:", by_length(mine, lambda row: number(row["ms"]))]
        parts += ["Peak memory of a sequence in MiB:", by_length(mine, lambda row: number(row["mib"]))]
        if step == "training":
            parts += [
                "Beside the paper, time as a multiple of softmax's at the same length:",
                compared(mine, "ms", "ms"),
                "and memory:",
                compared(mine, "mib", "mb"),
            ]
    missing = list(left_out(rows))
    return "\n\n".join([*parts, *(["\n".join(missing)] if missing else [])])
