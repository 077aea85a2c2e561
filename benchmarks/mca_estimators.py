"""MCA's estimators on a bundle: which keeps more labels for the time that it saves.

    python -m benchmarks.mca_estimators examples/bundles/reviews-mca --texts imdb-test.jsonl

The bundle's graph runs with each estimator in its McaAttention nodes, over the same texts (JSON lines with `text`) at
each alpha. Prints a table in Markdown: share of labels that are those of alpha 0, share of the exact value projection's
multiply-adds, and time. Times are taken in turns in one process, on one thread, over the first texts alone.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from attenuator import runtime
from attenuator.runtime.batch import pack
from benchmarks.contenders import documents
from benchmarks.measure.intervals import share
from benchmarks.measure.timing import interleave
from benchmarks.report.tables import table

ESTIMATORS = ("sampled", "deterministic")
ALPHAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
BATCH = 8
EXACT = "exact"


def session(folder: Path, estimator: str) -> Any:
    """The bundle's graph with another estimator, on one thread."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "estimator":
                attribute.s = estimator.encode()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.onnx"
        onnx.save(model, path)
        return runtime.create(path, threads=1)


def over(session: Any, model: runtime.Model, tokens: list[Any], alpha: float) -> tuple[Any, Any]:
    """Labels and value_flops of every text, each int64 or float32 `[texts]`."""
    labels, shares = [], []
    knobs = model.knobs.check(model.knobs.exact() | {"alpha": alpha})
    for start in range(0, len(tokens), BATCH):
        rows = [runtime.Row(ids, np.zeros_like(ids), knobs, seed=start) for ids in tokens[start : start + BATCH]]
        logits, value_flops = session.run(["logits", "value_flops"], pack(rows, model.manifest))
        labels.append(logits.argmax(1))
        shares.append(value_flops)
    return np.concatenate(labels), np.concatenate(shares)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="exported with --attention mca")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=600, help="whose labels are compared")
    parser.add_argument("--timed", type=int, default=24, help="documents that are timed")
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long the timed rounds may last")
    parser.add_argument("--cut", type=int, default=512, help="tokens of a text at most")
    options = parser.parse_args(arguments)
    model = runtime.load(options.bundle, threads=1, check=False)
    rows = documents.read(options.texts)[: options.documents]
    tokens = [model.encode(row["text"], truncate=True).token_ids[: options.cut] for row in rows]
    sessions = {name: session(options.bundle, name) for name in ESTIMATORS}
    exact, _ = over(sessions[ESTIMATORS[0]], model, tokens, 0.0)
    runs: dict[str, Callable[[], Any]] = {
        EXACT: partial(over, sessions[ESTIMATORS[0]], model, tokens[: options.timed], 0.0)
    }
    measured = {}
    for alpha in ALPHAS:
        for name in ESTIMATORS:
            labels, flops = over(sessions[name], model, tokens, alpha)
            measured[name, alpha] = share(labels == exact), float(flops.mean())
            key = f"{name} {alpha:g}"
            runs[key] = partial(over, sessions[name], model, tokens[: options.timed], alpha)
    timings = interleave(runs, seconds=options.seconds)
    lines = []
    for (name, alpha), (agreement, flops) in measured.items():
        faster = timings[f"{name} {alpha:g}"].times_faster_than(timings[EXACT])["median"]
        kept = f"{agreement['share']:.4f} ({agreement['low']:.4f} to {agreement['high']:.4f})"
        lines.append([f"`{name}`", f"{alpha:g}", kept, f"{flops:.3f}", f"{faster:.3f}"])
    mean = np.mean([len(ids) for ids in tokens])
    print(f"{options.bundle.name}, {len(tokens)} texts of {mean:.0f} tokens in the mean\n")
    print(table(["estimator", "`alpha`", "agreement", "value multiply-adds", "times as fast as exact"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
