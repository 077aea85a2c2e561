"""Times every attention that replaces softmax beside the same steps as ONNX Runtime's nodes: results/attentions.json.

    python -m benchmarks.operators.attentions                      # goes on where it was stopped; then `make gen`
    python -m benchmarks.operators.attentions --attention rfa window --again
    python -m benchmarks.operators.attentions --seconds 0.2 --output FILE.json

One sequence of Gaussian rows, one thread; operator, nodes and exact softmax attention in turns, medians of CPU time.
What is timed was compared first. The result file is written row by row, and a run measures what it lacks; the tables
stand in the operators' READMEs.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.contenders import steps
from benchmarks.measure import record
from benchmarks.measure.resumable import Rows, run, tree_of
from benchmarks.measure.timing import interleave
from benchmarks.report.attention_tables import ATTENTIONS

THREADS = 1


def measure(rows: Rows, attentions: tuple[str, ...], seconds: float) -> None:
    """Measures what is missing."""
    for key in attentions:
        module, tree = import_module(f"{steps.__name__}.{key}"), tree_of([key, "softmax"])
        for case in module.CASES:
            if any(row["case"] == case for row in rows.find(attention=key)):
                continue
            timings = interleave(module.contenders(case, THREADS), threads=THREADS, seconds=seconds)
            taken = {name: timing.median / 1000 for name, timing in timings.items()}
            ratio = timings["nodes"].times_faster_than(timings["own"])
            rows.keep({"attention": key, "case": case, "ms": taken, "share_of_nodes": ratio, **tree})
            facts = ", ".join(f"{name} {value}" for name, value in case.items())
            print(
                f"{key}: {facts}: {taken['own'] / taken['nodes']:.2f} of the nodes' time", file=sys.stderr, flush=True
            )


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a row's timed rounds may last")
    parser.add_argument("--again", action="store_true", help="measure what the result file has of them as well")
    parser.add_argument("--output", type=Path, default=record.RAW / "attentions.json")
    options = parser.parse_args(arguments)

    def work(rows: Rows) -> None:
        if options.again:
            rows.done = [row for row in rows.done if row["attention"] not in options.attention]
        measure(rows, tuple(options.attention), options.seconds)

    return run(options.output, arguments, {"benchmark": "attentions", "threads": THREADS}, work, again=False)


if __name__ == "__main__":
    sys.exit(main())
