"""What a trained classifier is worth on texts held out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.calibration.proportions import wilson

__all__ = ["CONFIDENCE", "Figures", "figures", "metric_of"]

# Of the intervals beside accuracies and agreements.
CONFIDENCE = 0.95


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


def metric_of(task: Task) -> str:
    """Name of the figure by which the best weights are chosen."""
    return "f1" if task == "multi_label" else "accuracy"


def figures(logits: npt.NDArray[np.float32], targets: npt.NDArray[Any], task: Task) -> Figures:
    """Counts what is right.

    Args:
        logits: `[texts, labels]`.
        targets: `[texts]` indices, or `[texts, labels]` of 0 and 1 for a task of several labels.
        task: of the model.
    """
    if task == "multi_label":
        decided, true = logits >= 0, targets > 0.5  # a score of 0.5, which thresholds may move at export
        right = int((decided == true).all(axis=1).sum())
        total = int(decided.sum() + true.sum())
        f1 = 2 * int((decided & true).sum()) / total if total else 1.0
    else:
        right, f1 = int((logits.argmax(axis=1) == targets).sum()), None
    low, high = wilson(right, len(targets), CONFIDENCE)
    return Figures(len(targets), right / len(targets), low, high, f1)
