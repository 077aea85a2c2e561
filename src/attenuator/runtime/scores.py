"""From logits to labels and scores, in float64."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task

# Scores of a regression agree within this many standard deviations. Where 99 % of normal deviations stay below it, two
# texts change their order in about 1.2 % of all pairs: as an agreement of 0.99 says of a balanced two-class model.
AGREEING_DEVIATIONS = 0.1
EDGE = 1e-9  # the logits of thresholds 0 and 1, which no score crosses, are infinite

Floats = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]


def softmax(logits: npt.ArrayLike) -> Floats:
    """Softmax over the labels, the largest logit subtracted first: no logit overflows.

    Args:
        logits: `[..., num_labels]`.

    Returns:
        float64 `[..., num_labels]`, each row sums to 1.
    """
    values = np.asarray(logits, dtype=np.float64)
    # The methods `max` and `sum` take several times as long for one row, with the same result.
    powers = np.exp(values - np.maximum.reduce(values, axis=-1, keepdims=True))
    return np.asarray(powers / np.add.reduce(powers, axis=-1, keepdims=True))


def sigmoid(logits: npt.ArrayLike) -> Floats:
    """Logistic function of each logit; the exponent is never positive, so that nothing overflows.

    Args:
        logits: `[..., num_labels]`.

    Returns:
        float64 `[..., num_labels]`, each in [0, 1].
    """
    values = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def unchanged(logits: npt.ArrayLike) -> Floats:
    """The logits as float64."""
    return np.asarray(logits, dtype=np.float64)


SCORES: dict[Task, Callable[[npt.ArrayLike], Floats]] = {
    "single_label": softmax,
    "multi_label": sigmoid,
    "regression": unchanged,
    "token_classification": softmax,
}


@dataclass(frozen=True, slots=True)
class RowScores:
    """The answer for one input.

    Attributes:
        label: the label with the highest score; the earlier one where two are equal. A regression has one label.
        score: its score: a probability or, in a regression, the logit itself.
        labels: multi-label only: labels at or above their threshold, in the bundle's order; else None.
        ranking: every label with its score, highest first.
        logits: in the bundle's label order.
    """

    label: str
    score: float
    labels: list[str] | None
    ranking: list[tuple[str, float]]
    logits: list[float]


def ranked(scores: Sequence[float], first: Collection[int] = ()) -> list[int]:
    """The places of one row's scores, highest first; of equal ones the earlier first.

    Those of `first`, which a second step has scored, come before all others, whose scores are another step's.
    """
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)  # stable
    return sorted(order, key=lambda place: place not in first) if first else order


def predict(
    scores: Floats, logits: Logits, *, labels: Sequence[str], thresholds: Sequence[float] | None = None
) -> RowScores:
    """The answer for one row.

    Args:
        scores: `[num_labels]`, as one of `SCORES` makes them of the logits.
        logits: `[num_labels]`.
        labels: the bundle's labels, in the order of the logits.
        thresholds: one a label, in a multi-label bundle; else None.

    Returns:
        The prediction.
    """
    values: list[float] = scores.tolist()
    chosen = None
    if thresholds is not None:
        chosen = [label for label, score, low in zip(labels, values, thresholds, strict=True) if score >= low]
    ranking = [(labels[i], values[i]) for i in ranked(values)]
    return RowScores(ranking[0][0], ranking[0][1], chosen, ranking, logits.tolist())


def margins(
    logits: npt.ArrayLike, exact: npt.ArrayLike, *, task: Task, thresholds: Sequence[float]
) -> tuple[Floats, Floats]:
    """How far answers are from others, and what the exact ones have in the same places.

    An answer agrees with the exact one where all its margins have the sign that the exact ones have; in a regression
    they are the scores.

    Args:
        logits: `[..., num_labels]`.
        exact: of the same shape.
        task: the bundle's.
        thresholds: multi-label only, one a label.

    Returns:
        float64 `[..., M]` twice. Single-label: the label's logit less each of the M = num_labels - 1 others.
        Multi-label: each logit less the one of its threshold, M = num_labels.
    """
    ours, theirs = unchanged(logits), unchanged(exact)
    if task == "single_label":
        top = ours.argmax(axis=-1)[..., np.newaxis]
        others = np.arange(ours.shape[-1]) != top
        shape = (*ours.shape[:-1], ours.shape[-1] - 1)
        differences = (np.take_along_axis(each, top, axis=-1) - each for each in (ours, theirs))
        ours, theirs = (each[others].reshape(shape) for each in differences)
    elif task == "multi_label":
        lowest = np.clip(np.asarray(thresholds, dtype=np.float64), EDGE, 1 - EDGE)
        edges = np.log(lowest / (1 - lowest))
        ours, theirs = ours - edges, theirs - edges
    return ours, theirs


def agrees(
    logits: npt.NDArray[np.float32],
    exact: npt.NDArray[np.float32],
    *,
    task: Task,
    thresholds: Sequence[float],
    deviation: float | None = None,
) -> npt.NDArray[np.bool_]:
    """Which answers agree with the exact ones.

    They do where the label is the same (`single_label`, and `token_classification` token by token), all labels at or
    above their threshold are the same (`multi_label`), or the score lies within `AGREEING_DEVIATIONS` standard
    deviations (`regression`).

    Args:
        logits: `[B, num_labels]`.
        exact: `[B, num_labels]`, at the exact value of every knob or from the trained model.
        task: the bundle's.
        thresholds: multi-label only, one a label.
        deviation: standard deviation of a regression's exact scores; that of the scores here by default.

    Returns:
        bool `[B]`; their mean is the agreement. Logits that are not finite agree with nothing.
    """
    finite = np.isfinite(logits).all(axis=-1)
    if task in ("single_label", "token_classification"):
        same = logits.argmax(axis=-1) == exact.argmax(axis=-1)
    elif task == "multi_label":
        lowest = np.asarray(thresholds)
        same = ((sigmoid(logits) >= lowest) == (sigmoid(exact) >= lowest)).all(axis=-1)
    else:
        within = tolerance(exact) if deviation is None else AGREEING_DEVIATIONS * deviation
        same = (np.abs(unchanged(logits) - exact) <= within).all(axis=-1)
    return np.asarray(finite & same)


def tolerance(exact: npt.ArrayLike) -> float:
    """The distance within which scores of a regression agree.

    Args:
        exact: `[B, 1]`, the exact scores.
    """
    return float(AGREEING_DEVIATIONS * unchanged(exact).std())
