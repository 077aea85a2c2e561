"""Measure a bundle over its knob, through the runtime that serves it, next to the TF-IDF baseline.

`python examples/common/evaluate.py --task imdb --data IMDB_FOLDER --bundle examples/bundles/reviews --values 0 8 32`

prints the table of the example's README. Agreement is with the exact value; time is that of this machine. Of a model
with several knobs `--knob NAME` says which one the values are of; the others are at their exact values.

`--against OTHER_BUNDLE` compares two bundles of one model instead, such as one in int8 (`smaller_bundle.py`) with its
fp32 original: quality of both, agreement of their labels and the largest difference of a logit, at the same knob and
seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from tqdm import tqdm

from attenuator.runtime import Encoded, Model, Row, load
from attenuator.runtime.scores import agrees, sigmoid
from common.baseline import baseline_scores
from common.text import TASKS, Document, Task, target_matrix

TOKENS_PER_BATCH = 16_384
Floats = NDArray[np.float32]


class Sweep(NamedTuple):
    """Values of one knob, the others exact; without values the exact setting and the default."""

    knob: str | None
    values: list[float] | None


@dataclass(frozen=True)
class Measured:
    """One knob value and seed on one split.

    Attributes:
        logits: `[documents, labels]`.
        value_flops: mean share of the value projection's multiply-adds (MCA), else NaN.
        seconds: time in the session, all documents together.
    """

    logits: Floats
    value_flops: float
    seconds: float


def run(model: Model, texts: list[Encoded], knobs: dict[str, float | int], seed: int) -> Measured:
    """Classify documents in batches of like length."""
    checked = model.knobs.check(knobs)
    order = np.argsort([len(text.token_ids) for text in texts], kind="stable")
    groups: list[list[int]] = [[]]
    tokens = 0
    for index in order:
        length = len(texts[index].token_ids)
        if groups[-1] and tokens + length > TOKENS_PER_BATCH:
            groups.append([])
            tokens = 0
        groups[-1].append(int(index))
        tokens += length
    logits = np.zeros((len(texts), len(model.manifest.labels)), dtype=np.float32)
    flops = np.full(len(texts), np.nan)
    seconds = 0.0
    for group in tqdm(groups, desc=f"{knobs} seed {seed}", mininterval=2.0, leave=False):
        rows = [Row(texts[index].token_ids, texts[index].type_ids, checked, seed) for index in group]
        start = time.perf_counter()
        results = model.run(rows)
        seconds += time.perf_counter() - start
        for index, result in zip(group, results, strict=True):
            logits[index] = result.logits
            flops[index] = np.nan if result.value_flops is None else result.value_flops
    return Measured(logits, float(flops.mean()), seconds)


def measure_of(task: Task) -> str:
    """What `quality` is called."""
    return "macro average precision" if task.multi_label else "accuracy"


def quality(task: Task, documents: list[Document], scores: Floats) -> float:
    """Accuracy, or macro average precision over the labels that occur in `documents`; scores `[documents, labels]`."""
    truth = target_matrix(documents, len(task.labels))
    if not task.multi_label:
        return float((scores.argmax(1) == truth.argmax(1)).mean())
    present = truth.any(0)
    return float(average_precision_score(truth[:, present], scores[:, present], average="macro"))


def decisions(model: Model, logits: Floats) -> NDArray[np.bool_]:
    """`[documents, labels]`: which labels are predicted."""
    if model.manifest.task == "single_label":
        best: NDArray[np.bool_] = np.eye(logits.shape[1], dtype=bool)[logits.argmax(1)]
        return best
    chosen: NDArray[np.bool_] = sigmoid(logits) >= np.array(model.manifest.thresholds)
    return chosen


def agreement(model: Model, logits: Floats, exact: Floats) -> float:
    """Share of the documents whose answers agree, as export counts them; both `[documents, labels]`."""
    manifest = model.manifest
    return float(agrees(logits, exact, task=manifest.task, thresholds=manifest.thresholds).mean())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--bundle", type=Path, help="bundle folder; without it only the baseline is measured")
    parser.add_argument("--against", type=Path, help="bundle folder to compare it with; leaves the baseline out")
    parser.add_argument("--split", choices=("held_out", "test"), default="test")
    parser.add_argument("--values", type=float, nargs="+", help="knob values; the exact one too, but for --against")
    parser.add_argument("--knob", help="what the values are of, where a model has several; the others are exact")
    parser.add_argument("--seeds", type=int, default=1, help="seeds averaged for each value (%(default)s)")
    parser.add_argument("--limit", type=int, help="measure only that many documents, evenly spread")
    parser.add_argument("--no-baseline", action="store_true", help="leave the TF-IDF baseline out")
    options = parser.parse_args()
    if options.against and not options.bundle:
        parser.error("--against needs --bundle")
    sweep = Sweep(options.knob, options.values)
    task = TASKS[options.task](options.data)
    documents: list[Document] = getattr(task, options.split)
    if options.limit:
        step = max(1, len(documents) // options.limit)
        documents = documents[::step][: options.limit]
    print(f"{len(documents)} documents of {options.task}, split {options.split}")
    if task.multi_label:
        truth = target_matrix(documents, len(task.labels))
        print(f"prevalence, mean over the labels that occur: {truth[:, truth.any(0)].mean():.4f}")
    if not (options.no_baseline or options.against):
        figure = quality(task, documents, baseline_scores(task, documents))
        print(f"TF-IDF + logistic regression, {measure_of(task)}: {figure:.4f}", flush=True)
    if options.against:
        compare(load(options.bundle), load(options.against), task, documents, sweep, options.seeds)
    elif options.bundle:
        table(load(options.bundle), task, documents, sweep, options.seeds)


def encoded(model: Model, documents: list[Document]) -> list[Encoded]:
    """Tokenize, cut to the model's length; print how long they are."""
    texts = [model.encode(document.text, truncate=True) for document in documents]
    cut = float(np.mean([text.truncated > 0 for text in texts]))
    tokens = [len(text.token_ids) + text.truncated for text in texts]
    print(f"tokens: mean {np.mean(tokens):.0f}, median {np.median(tokens):.0f}, max {max(tokens)}; cut {cut:.1%}")
    return texts


def settings(model: Model, sweep: Sweep, exact_first: bool) -> list[dict[str, float | int]]:
    """The settings asked for, or the exact one and the default; where `exact_first`, the exact one before all."""
    exact, default = model.knobs.exact(), model.knobs.defaults()
    name = sweep.knob or next(iter(exact), "")
    if sweep.values and name not in exact:
        raise SystemExit(f"the model has no knob {name}; its knobs: {' and '.join(exact) or 'none'}")
    if sweep.values and len(exact) > 1 and not sweep.knob:
        raise SystemExit(f"--values are those of one knob, the model has {' and '.join(exact)}: name one with --knob")
    requested = [model.knobs.check(exact | {name: type(exact[name])(value)}) for value in sweep.values or []]
    requested = requested or [exact, default]
    chosen = [exact, *requested] if exact_first else requested
    return [setting for index, setting in enumerate(chosen) if setting not in chosen[:index]]


def described(knobs: dict[str, float | int]) -> str:
    """A setting as the tables show it."""
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items()) or "none"


def table(model: Model, task: Task, documents: list[Document], sweep: Sweep, seeds: int) -> None:
    """Print one row per knob value: quality, agreement with the exact value, value FLOPs, time per document."""
    texts = encoded(model, documents)
    exact: Floats | None = None
    print(f"| knob | {measure_of(task)} | agreement | per label | value FLOPs | ms a document |")
    print("|---|---|---|---|---|---|")
    for knobs in settings(model, sweep, exact_first=True):
        # No seed changes the exact value, which comes first.
        runs = [run(model, texts, knobs, seed) for seed in range(seeds if exact is not None else 1)]
        exact = runs[0].logits if exact is None else exact
        whole = np.mean([agreement(model, one.logits, exact) for one in runs])
        single = np.mean([(decisions(model, one.logits) == decisions(model, exact)).mean() for one in runs])
        figure = np.mean([quality(task, documents, one.logits) for one in runs])
        flops = np.mean([one.value_flops for one in runs])
        duration = 1000 * np.mean([one.seconds for one in runs]) / len(documents)
        cells = f"{figure:.4f} | {whole:.4f} | {single:.4f} | {flops:.3f} | {duration:.2f}"
        print(f"| {described(knobs)} | {cells} |", flush=True)


def compare(model: Model, other: Model, task: Task, documents: list[Document], sweep: Sweep, seeds: int) -> None:
    """Print one row per knob value: quality of both bundles, agreement of labels, largest difference of a logit."""
    if other.manifest.labels != model.manifest.labels or other.manifest.knobs != model.manifest.knobs:
        raise SystemExit("the bundles are not of one model: their labels or knobs differ")
    texts = encoded(model, documents)
    names = [f"{measure_of(task)}, {one.manifest.name} ({one.manifest.precision})" for one in (model, other)]
    print(f"| knob | {names[0]} | {names[1]} | agreement | per label | largest difference |\n|---|---|---|---|---|---|")
    for knobs in settings(model, sweep, exact_first=False):
        drawn = range(1 if knobs == model.knobs.exact() else seeds)
        pairs = [(run(model, texts, knobs, seed).logits, run(other, texts, knobs, seed).logits) for seed in drawn]
        single = np.mean([(decisions(model, ours) == decisions(other, theirs)).mean() for ours, theirs in pairs])
        figures = [np.mean([quality(task, documents, logits) for logits in side]) for side in zip(*pairs, strict=True)]
        whole = np.mean([agreement(model, ours, theirs) for ours, theirs in pairs])
        largest = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
        cells = f"{figures[0]:.4f} | {figures[1]:.4f} | {whole:.4f} | {single:.4f} | {largest:.2g}"
        print(f"| {described(knobs)} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
