"""From logits to labels and scores, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def softmax(logits: npt.ArrayLike) -> Floats:
    """Softmax over the labels, the largest logit subtracted first: no logit overflows.

    Args:
        logits: `[..., num_labels]`.

    Returns:
        float64 `[..., num_labels]`, each row sums to 1.
    """
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


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


@dataclass(frozen=True, slots=True)
class RowScores:
    """The answer for one input.

    Attributes:
        label: the label with the highest score; the earlier one where two are equal.
        score: its score.
        labels: multi-label only: labels at or above their threshold, in the bundle's order; else None.
        ranking: every label with its score, highest first.
        logits: in the bundle's label order.
    """

    label: str
    score: float
    labels: list[str] | None
    ranking: list[tuple[str, float]]
    logits: list[float]


def predict(
    logits: npt.NDArray[np.float32], *, task: str, labels: Sequence[str], thresholds: Sequence[float]
) -> RowScores:
    """Turns one row of logits into labels and scores.

    Args:
        logits: `[num_labels]`.
        task: `single_label` (softmax) or `multi_label` (sigmoid).
        labels: the bundle's labels, in the order of the logits.
        thresholds: multi-label only, one a label.

    Returns:
        The prediction.
    """
    scores = softmax(logits) if task == "single_label" else sigmoid(logits)
    order = np.argsort(-scores, kind="stable")
    chosen = None
    if task == "multi_label":
        chosen = [label for label, score, low in zip(labels, scores, thresholds, strict=True) if score >= low]
    ranking = [(labels[i], float(scores[i])) for i in order]
    return RowScores(ranking[0][0], ranking[0][1], chosen, ranking, [float(value) for value in logits])
