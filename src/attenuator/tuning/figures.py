"""Accuracy and other figures of a trained classifier on texts held out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.calibration.proportions import wilson

__all__ = ["CONFIDENCE", "AnyFigures", "Figures", "ScoreFigures", "figures", "metric_of"]

# Of the intervals beside accuracies and agreements.
CONFIDENCE = 0.95
# Of scores that are all the same, for R2 to be a number.
SMALLEST_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Figures:
    """Counted on texts held out.

    Attributes:
        texts: how many.
        accuracy: share of the texts whose label, or whose whole set of labels, is right.
        low: lower end of its 95 % interval.
        high: upper end.
        f1: of all decisions for a label together (micro average); None where a text has one label.
    """

    texts: int
    accuracy: float
    low: float
    high: float
    f1: float | None = None

    def sentence(self) -> str:
        """For people."""
        score = "" if self.f1 is None else f", F1 over all labels {self.f1:.3f}"
        kind = "accuracy" if self.f1 is None else "all labels of a text right"
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        return f"{kind} {self.accuracy:.3f} on {self.texts:,} texts held out ({interval}){score}"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class ScoreFigures:
    """Of a regression, on texts held out.

    Attributes:
        texts: how many.
        rmse: root of the mean squared error.
        r2: share of the variance of the right scores that is explained; below 0 where their mean would do better.
    """

    texts: int
    rmse: float
    r2: float

    def sentence(self) -> str:
        """For people."""
        return f"root mean squared error {self.rmse:.3g}, R2 {self.r2:.3f} on {self.texts:,} texts held out"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


AnyFigures = Figures | ScoreFigures


def metric_of(task: Task) -> str:
    """Name of the figure by which the best weights are chosen."""
    return {"multi_label": "f1", "regression": "r2"}.get(task, "accuracy")


def score_figures(scores: npt.NDArray[np.float32], targets: npt.NDArray[Any]) -> ScoreFigures:
    """Errors of scores, both `[texts, 1]`."""
    errors = scores.astype(np.float64) - targets
    variance = float(np.var(targets.astype(np.float64)))
    squared = float(np.square(errors).mean())
    return ScoreFigures(len(targets), squared**0.5, 1 - squared / max(variance, SMALLEST_VARIANCE))


def figures(logits: npt.NDArray[np.float32], targets: npt.NDArray[Any], task: Task) -> AnyFigures:
    """Counts what is right.

    Args:
        logits: `[texts, labels]`.
        targets: `[texts]` indices; `[texts, labels]` of 0 and 1 for a task of several labels; scores `[texts, 1]`.
        task: of the model.
    """
    if task == "regression":
        return score_figures(logits, targets)
    if task == "multi_label":
        decided, true = logits >= 0, targets > 0.5  # a score of 0.5, which thresholds may move at export
        right = int((decided == true).all(axis=1).sum())
        total = int(decided.sum() + true.sum())
        f1 = 2 * int((decided & true).sum()) / total if total else 1.0
    else:
        right, f1 = int((logits.argmax(axis=1) == targets).sum()), None
    low, high = wilson(right, len(targets), CONFIDENCE)
    return Figures(len(targets), right / len(targets), low, high, f1)
