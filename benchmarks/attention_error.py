"""How far every attention with a knob is from its own exact value, over the length and over the knob.

    python -m benchmarks.attention_error --minutes 10        # goes on where it was stopped; then `make gen`
    python -m benchmarks.attention_error --minutes 1 --lengths 128 --seeds 2 --output FILE.json

On drawn queries, keys and values, and on those that trained models of this tree give to the attention of their first
layer, for the text of this tree's documents. The kernels of the CPU run, which agree with their references. An error is
the Frobenius norm of the difference over that of the exact output; an angle is between a row of a head and the exact
one, in radians, the mean over rows (YOSO's Figure 8 has it over the length). Where an operator states a bound of its
error, the largest of all rows' mean errors is set beside it. The result file is written row by row, and a run measures
what it lacks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Knob, Operator
from benchmarks.contenders.attention_inputs import Inputs, drawn, recorded
from benchmarks.contenders.inputs import Array
from benchmarks.measure import record
from benchmarks.measure.resumable import Rows, tree_of

ROOT = Path(__file__).resolve().parents[1]
BUNDLES = ROOT / "examples" / "bundles"
DRAWN, HEADS, HEAD_DIM = "drawn", 2, 64
TRAINED = ("sentiment", "reviews-mca", "reviews")
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SEEDS = 8
LEAST, TOLERANCE = 48, 1e-4  # by which an exact value is taken for softmax attention
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of a whole-number knob's default
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the way from the exact value of another to its other end
APPROXIMATIONS = [each for each in OPERATORS if each.attention and each.knobs and not each.asked_as]


def values_of(knob: Knob) -> list[float]:
    """Values of a knob to try, the exact one aside."""
    if knob.dtype == "int32":
        tried = {min(max(round(knob.default * factor), knob.low, 1), knob.high) for factor in FACTORS}
    else:
        end = knob.low if knob.exact > knob.low else knob.high
        tried = {round(knob.exact + share * (end - knob.exact), 6) for share in SHARES}
    return sorted(tried - {knob.exact})


@cache
def text() -> str:
    """The text of this tree's documents."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


@cache
def inputs_of(source: str, length: int) -> Inputs | None:
    """What attention gets; None where a model does not take so many tokens."""
    if source == DRAWN:
        return drawn(length, HEADS, HEAD_DIM)
    try:
        return recorded(BUNDLES / source, text(), length)
    except ValueError:
        return None


@cache
def exact(source: str, length: int, key: str) -> Array:
    """The operator's output at the exact values of its knobs."""
    inputs = inputs_of(source, length)
    operator = next(each for each in OPERATORS if each.key == key)
    assert inputs is not None
    return inputs.run(operator, {knob.name: knob.exact for knob in operator.knobs}, 0)


def angle(rows: Array, others: Array) -> float:
    """Mean angle between rows of the same place, in radians; rows `[..., head_dim]` of nothing but 0 do not count."""
    norms = np.linalg.norm(rows, axis=-1) * np.linalg.norm(others, axis=-1)
    cosines = (rows * others).sum(axis=-1)[norms > 0] / norms[norms > 0]
    return float(np.arccos(np.clip(cosines, -1, 1)).mean())


def of_bound(inputs: Inputs, errors: Array, alpha: float) -> float:
    """The largest row's mean error over MCA's bound, `alpha * mean token norm * ||W_v||_F` (Theorem 2), of its head.

    Args:
        inputs: with `hidden` `[n, C]` and `value_weight` `[C, heads * head_dim]`.
        errors: `[heads, n]`, each row's error norm, the mean over seeds.
        alpha: of the bound.
    """
    norm = np.linalg.norm(inputs.tensors["hidden"], axis=1).mean()
    heads = inputs.tensors["value_weight"].reshape(len(inputs.tensors["value_weight"]), inputs.num_heads, -1)
    bounds = alpha * norm * np.linalg.norm(heads, axis=(0, 2))
    return float((errors / bounds[:, None]).max())


def measured(operator: Operator, source: str, inputs: Inputs, knob: Knob, value: float, seeds: int) -> dict[str, Any]:
    """Errors at one value of a knob, over seeds."""
    truth = exact(source, inputs.length, operator.key)
    settings = {each.name: each.exact for each in operator.knobs} | {knob.name: value}
    heads = (inputs.length, inputs.num_heads, -1)
    errors, angles, rows = [], [], []
    for seed in range(1 if knob.sampling == "none" else seeds):
        output = inputs.run(operator, settings, seed)
        errors.append(np.linalg.norm(output - truth) / np.linalg.norm(truth))
        angles.append(angle(output.reshape(heads), truth.reshape(heads)))
        rows.append(np.linalg.norm((output - truth).reshape(heads), axis=2).T)
    result = {"error": float(np.mean(errors)), "spread": float(np.std(errors)), "angle": float(np.mean(angles))}
    if "value_weight" in {item.name for item in operator.inputs}:
        result["of_bound"] = of_bound(inputs, np.mean(rows, axis=0), value)
    return result


def measure(rows: Rows, lengths: Sequence[int], seeds: int, minutes: float) -> bool:
    """Measures what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * minutes
    trees = {operator.key: tree_of([operator.key]) for operator in APPROXIMATIONS}
    for length in lengths:
        for source in (DRAWN, *TRAINED):
            inputs = inputs_of(source, length)
            for operator in APPROXIMATIONS if inputs else ():
                assert inputs is not None
                if not suits(inputs, operator):
                    continue
                for knob in operator.knobs:
                    for value in values_of(knob):
                        facts = {"attention": operator.key, "inputs": source, "n": length, "knob": knob.name}
                        if rows.find(**facts, value=value):
                            continue
                        if time.monotonic() > end:
                            return False
                        found = measured(operator, source, inputs, knob, value, seeds)
                        rows.keep(facts | {"value": value} | found | trees[operator.key])
        print(f"{length} tokens", file=sys.stderr, flush=True)
    return True


@cache
def approximates_softmax(key: str) -> bool:
    """Whether an operator's exact value is softmax attention."""
    inputs = drawn(LEAST, HEADS, HEAD_DIM)
    softmax = inputs.run(BASELINE, {}, 0)
    operator = next(each for each in OPERATORS if each.key == key)
    ours = inputs.run(operator, {knob.name: knob.exact for knob in operator.knobs}, 0)
    return bool(np.abs(ours - softmax).max() < TOLERANCE * np.abs(softmax).max())


def suits(inputs: Inputs, operator: Operator) -> bool:
    """Whether an operator may be tried: on drawn inputs any that needs no weights of its own, on a model's its own."""
    if inputs.lacks(operator):
        return False
    is_softmax = inputs.trained == BASELINE.key and approximates_softmax(operator.key)
    return inputs.trained in ("", operator.attention) or is_softmax


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="to spend; the same command goes on")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="in tokens")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    parser.add_argument("--output", type=Path, default=record.RESULTS / "attention_error.json")
    options = parser.parse_args(arguments)
    head = record.origin(sys.argv[1:] if arguments is None else arguments, []) | record.cpu()
    facts = {"benchmark": "attention_error", "seeds": options.seeds, "heads": HEADS, "head_dim": HEAD_DIM}
    try:
        rows = Rows(options.output, head, facts, again=options.again)
    except ValueError as error:
        parser.error(str(error))
    try:
        complete = measure(rows, options.lengths, options.seeds, options.minutes)
    except KeyboardInterrupt:
        complete = False
    print(f"{options.output}{'' if complete else ': the same command goes on'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
