"""The tables of `efficiency.py` in benchmarks/papers/efficiency.md, beside the YOSO paper's; standard library only."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.report.contenders import of_paper, place, shown
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Row, paper_rows, read, select
from benchmarks.report.tables import table, times

BASELINE = "`softmax`"
STEPS = {
    "training": "### A training step, forward and backward",
    "inference": "### Inference",
}
Figures = dict[tuple[str, int], float]


def paper() -> list[dict[str, str]]:
    """The paper's rows that have figures."""
    return [row for row in paper_rows("yoso_appendix_efficiency.csv") if row["ms"]]


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
    ours: Figures = {(shown(row), row["n"]): row[field] for row in rows if "ms" in row}
    lengths = sorted({int(row["n"]) for row in paper()})
    body = []
    for name, one in {shown(row): row for row in rows}.items():
        if name != BASELINE:
            body.append([f"{name}, here", *(_ratio(ours, name, n) for n in lengths)])
        for number_of, batches in (("1", "largest batches"), ("2", "equal batches")):
            table_rows = [row for row in paper() if row["table"] == number_of]
            theirs = of_paper(table_rows, one["attention"], one["settings"])
            if theirs is None or name == BASELINE:
                continue
            figures: Figures = {(row["method"].lower(), int(row["n"])): float(row[column]) for row in table_rows}
            ratios = (_ratio(figures, theirs["method"].lower(), n, "softmax") for n in lengths)
            body.append([f"the paper's, {batches}", *ratios])
    return table(["attention", *(f"{n:,}" for n in lengths)], body)


def _ratio(figures: Figures, name: str, n: int, baseline: str = BASELINE) -> str:
    one, base = figures.get((name, n)), figures.get((baseline, n))
    return times(one / base) if one and base else ""


def left_out(rows: list[Row]) -> Iterator[str]:
    """What was not measured, and why."""
    for row in rows:
        if "left_out" in row:
            where = f"from {row['n']:,} tokens on" if row["n"] else "at all"
            why = f": {row['left_out']}"
            if "s" in row:
                why = f", where a run would take up to {row['s']:.0f} s or {row['gib']:.1f} GiB"
            yield f"- {shown(row)}, {row['step']}: not measured {where}{why}"


def how_busy(rows: list[Row]) -> str:
    """How long runs took beside their CPU time: far more where others had the cores."""
    ratios = [row["elapsed"] for row in rows if "ms" in row]
    median, most = statistics.median(ratios), max(ratios)
    return f"Elapsed time over CPU time was {median:.1f} (median; at most {most:.1f}): 1 is an idle machine."


def trained_by(rows: list[Row]) -> str:
    """Which attentions are trained through the operator's own gradient."""
    own = dict.fromkeys(shown(row) for row in rows if row.get("through") == "operator")
    return f"Through a gradient of the operator's own: {', '.join(own) or 'none'}. All others: PyTorch."


def efficiency() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "efficiency.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.papers.efficiency` measures it."
    result: dict[str, Any] = read(path)
    machine = result["machine"]
    rows = sorted(result["rows"], key=lambda row: (place(row), row["n"]))
    parts = [
        f"Measured on one core of an {machine['processor']} ({ISA_NAMES[result['isa']]}), fp32, one sequence, CPU "
        f"time; onnxruntime {result['versions']['onnxruntime']}, torch {result['versions']['torch']}, "
        f"{commit(*rows)}, by `{result['command']}`."
    ]
    for step, heading in STEPS.items():
        mine = select(rows, step=step)
        if not mine:
            continue
        parts += [heading, how_busy(mine), *([trained_by(mine)] if step == "training" else [])]
        parts += ["Milliseconds a sequence, by tokens:", by_length(mine, lambda row: number(row["ms"]))]
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
