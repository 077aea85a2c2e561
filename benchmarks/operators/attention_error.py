"""How far every attention with a knob is from its own exact value, over the length and over the knob.

    python -m benchmarks.operators.attention_error --minutes 10        # goes on where it was stopped
    python -m benchmarks.operators.attention_error --minutes 1 --lengths 128 --seeds 2 --output FILE.json

On drawn queries, keys and values, and on those that trained models of this tree give to the attention of their first
layer, for the text of this tree's documents. The kernels of the CPU run, which agree with their references. An error is
the Frobenius norm of the difference over that of the exact output; an angle is between a row of a head and the exact
one, in radians, the mean over rows (YOSO's Figure 8 has it over the length). Where an operator states a bound of its
error, what that allows and the largest of all rows' mean errors are set beside it, for each of its estimators. The
result file is written row by row, and a run measures what it lacks, with --renew also what was measured with kernels
that have changed since.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Knob, Operator
from benchmarks.contenders.attention_inputs import Inputs, drawn, recorded
from benchmarks.contenders.inputs import Array
from benchmarks.measure import record
from benchmarks.measure.options import amount, count
from benchmarks.measure.resumable import Rows, is_outdated, run, tree_of

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = ROOT / "examples" / "bundles"
DRAWN, HEADS, HEAD_DIM = "drawn", 2, 64
TRAINED = ("sentiment", "reviews-mca", "reviews")
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SEEDS = 8
LEAST, TOLERANCE = 48, 1e-4  # by which an exact value is taken for softmax attention
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1, 2, 4)  # of a whole-number knob's default
ESTIMATOR = "estimator"
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the way from the exact value of another to its other end
WINDOWS = (16.0, 32.0, 64.0, 128.0, 256.0)  # of knobs whose default is the trained one
APPROXIMATIONS = [each for each in OPERATORS if each.attention and each.knobs and not each.asked_as]


def values_of(knob: Knob) -> list[float]:
    """Values of a knob to try, the exact one aside."""
    if knob.bounded_by:
        return list(WINDOWS)
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


def variants(operator: Operator) -> list[dict[str, str]]:
    """Ways in which an operator can approximate: each of its estimators, where it has several."""
    choices = [choice for item in operator.attributes if item.name == ESTIMATOR for choice in item.choices or ()]
    return [{ESTIMATOR: choice} for choice in choices] or [{}]


def bounds(inputs: Inputs, alpha: float) -> Array:
    """MCA's bounds of a row's mean error, alpha * mean token norm * ||W_v||_F (Theorem 2): `[heads]`.

    Args:
        inputs: with `hidden` `[n, C]` and `value_weight` `[C, heads * head_dim]`.
        alpha: of the bound.
    """
    norm = np.linalg.norm(inputs.tensors["hidden"], axis=1).mean()
    weights = inputs.tensors["value_weight"].reshape(len(inputs.tensors["value_weight"]), inputs.num_heads, -1)
    of_heads: Array = alpha * norm * np.linalg.norm(weights, axis=(0, 2))
    return of_heads


def measured(case: Case, inputs: Inputs, seeds: int) -> dict[str, Any]:
    """Errors over seeds."""
    operator, knob = case.operator, case.knob
    truth = exact(case.source, inputs.length, operator.key)
    knobs = {each.name: each.exact for each in operator.knobs} | {knob.name: case.value}
    heads = (inputs.length, inputs.num_heads, -1)
    errors, angles, rows = [], [], []
    for seed in range(1 if knob.sampling == "none" else seeds):
        output = inputs.run(operator, knobs, seed, case.settings)
        errors.append(np.linalg.norm(output - truth) / np.linalg.norm(truth))
        angles.append(angle(output.reshape(heads), truth.reshape(heads)))
        rows.append(np.linalg.norm((output - truth).reshape(heads), axis=2).T)
    result = {"error": float(np.mean(errors)), "spread": float(np.std(errors)), "angle": float(np.mean(angles))}
    if "value_weight" in {item.name for item in operator.inputs}:
        allowed = bounds(inputs, case.value)
        result["of_bound"] = float((np.mean(rows, axis=0) / allowed[:, None]).max())
        result["allowed"] = float(np.sqrt(inputs.length) * np.linalg.norm(allowed) / np.linalg.norm(truth))
    return result


@dataclass(frozen=True)
class Case:
    """What a row is of.

    Attributes:
        operator: the attention.
        settings: attributes, where it is tried with several.
        source: of the inputs: `drawn`, or a bundle's name.
        length: in tokens.
        knob: that is set.
        value: of the knob; others have their exact values.
    """

    operator: Operator
    settings: dict[str, str]
    source: str
    length: int
    knob: Knob
    value: float

    @property
    def facts(self) -> dict[str, Any]:
        """What names the row."""
        names = {"attention": self.operator.key, "settings": self.settings, "inputs": self.source, "n": self.length}
        return names | {"knob": self.knob.name, "value": self.value}


def cases(lengths: Sequence[int]) -> Iterator[Case]:
    """All rows, short sequences first."""
    for length, source in product(lengths, (DRAWN, *TRAINED)):
        inputs = inputs_of(source, length)
        for operator in APPROXIMATIONS if inputs else ():
            assert inputs is not None
            if suits(inputs, operator):
                for settings, knob in product(variants(operator), operator.knobs):
                    for value in values_of(knob):
                        yield Case(operator, settings, source, length, knob, value)


def measure(rows: Rows, options: argparse.Namespace) -> bool:
    """Measures what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * options.minutes
    trees = {operator.key: tree_of([operator.key]) for operator in APPROXIMATIONS}

    def holds(case: Case) -> bool:
        return any(not (options.renew and is_outdated(row)) for row in rows.find(**case.facts))

    todo = [case for case in cases(options.lengths) if not holds(case)]
    with tqdm(total=len(todo), unit="row", disable=not todo) as bar:
        for case in todo:
            if time.monotonic() > end:
                return False
            bar.set_postfix_str(f"{case.length} tokens, {case.operator.key}")
            inputs = inputs_of(case.source, case.length)
            assert inputs is not None
            found = measured(case, inputs, options.seeds)
            rows.keep(case.facts | found | trees[case.operator.key], instead_of=case.facts)
            bar.update()
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
    parser.add_argument("--minutes", type=amount, default=10, help="to spend; the same command goes on")
    parser.add_argument("--lengths", type=count, nargs="+", default=LENGTHS, help="in tokens")
    parser.add_argument("--seeds", type=count, default=SEEDS)
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    parser.add_argument("--renew", action="store_true", help="measure again what kernels have changed of since")
    parser.add_argument("--output", type=Path, default=record.STUDIES / "attention_error.json")
    options = parser.parse_args(arguments)
    facts = {"benchmark": "attention_error", "seeds": options.seeds, "heads": HEADS, "head_dim": HEAD_DIM}
    return run(options.output, arguments, facts, lambda rows: measure(rows, options), again=options.again)


if __name__ == "__main__":
    sys.exit(main())
