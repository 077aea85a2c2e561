"""Agreement and accuracy over values of the knob, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from attenuator.bundle import Task
from attenuator.calibration.proportions import wilson
from attenuator.ops.spec import Knob
from attenuator.runtime.scores import agrees
from attenuator.tuning.adapt.distillation import MULTI_LABEL_THRESHOLD, at_knob
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.figures import CONFIDENCE
from attenuator.tuning.figures import Figures as RightAnswers
from attenuator.tuning.figures import figures as counted

__all__ = ["Figures", "accuracy", "knob_values", "measure", "table"]

MULTIPLES = (0.5, 1, 2, 4)
BATCH_TOKENS = 4096
# Of the hashes that are drawn to measure with.
SEED = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What a model's answers are worth at one value of the knob.

    Attributes:
        value: of the knob.
        agreement: share of texts whose answer is that of the softmax model.
        low: of its 95 % interval (Wilson's).
        high: likewise.
        accuracy: share of texts whose answer is right; None without labels.
    """

    value: float
    agreement: float
    low: float
    high: float
    accuracy: float | None

    def as_json(self) -> dict[str, float | None]:
        """For the run's record."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> Self:
        """From a run's record.

        Raises:
            TypeError: it has other fields, or one that is no number.
        """
        figures = cls(**values)
        numbers = [value for name, value in values.items() if (name, value) != ("accuracy", None)]
        if not all(type(number) in (int, float) for number in numbers):
            raise TypeError(f"{values} are no figures")
        return figures


def knob_values(knob: Knob, value: float) -> list[int | float]:
    """The exact value, that which is trained for, and half, twice and four times it, within the knob's bounds."""
    kind = int if knob.dtype == "int32" else float
    around = {kind(min(knob.high, max(knob.low, multiple * value))) for multiple in MULTIPLES}
    return [kind(knob.exact), *sorted(around - {kind(knob.exact)})]


def accuracy(logits: npt.NDArray[np.float32], targets: npt.NDArray[Any] | None, task: Task) -> float | None:
    """Share of right answers: the label, or all labels of a text; None without targets or in a regression.

    Args:
        logits: `[texts, labels]`.
        targets: `[texts]` indices, or `[texts, labels]` of 0 and 1.
        task: what the logits mean.
    """
    found = None if targets is None else counted(logits, targets, task)
    return found.accuracy if isinstance(found, RightAnswers) else None


def measure(
    trainable: Trainable,
    rows: Rows,
    teacher: npt.NDArray[np.float32],
    targets: npt.NDArray[Any] | None,
    knob: Knob,
    values: Sequence[int | float],
) -> list[Figures]:
    """Runs a model at each value of its knob, with other hashes for each text.

    So the intervals hold for hashes that were not drawn as well as for texts that were not: both vary from one text to
    the next. The same hashes for all would make texts err together.

    Args:
        trainable: the model, without dropout.
        rows: texts that it was not trained on.
        teacher: the softmax model's logits of them, `[texts, labels]`.
        targets: as `accuracy` takes them.
        knob: of the model's attention.
        values: of the knob.
    """
    figures = []
    thresholds = [MULTI_LABEL_THRESHOLD] * teacher.shape[1]
    for value in values:
        with at_knob(trainable, knob, value), torch.random.fork_rng():
            torch.manual_seed(SEED)
            logits = predict(trainable.model, rows, trainable.collator, BATCH_TOKENS, drawn=True)
        same = int(agrees(logits, teacher, task=trainable.task, thresholds=thresholds).sum())
        low, high = wilson(same, len(teacher), CONFIDENCE)
        figures.append(Figures(float(value), same / len(teacher), low, high, accuracy(logits, targets, trainable.task)))
    return figures


def table(knob: Knob, teacher_accuracy: float | None, before: list[Figures], after: list[Figures]) -> list[str]:
    """Lines of a table: the softmax model, and each value of the knob before and after training."""

    def cell(share: float | None) -> str:
        return "" if share is None else f"{share:.3f}"

    head = [knob.name, "agreement before", "after", "95 % interval"]
    rows = [
        [f"{new.value:g}", cell(old.agreement), cell(new.agreement), f"{new.low:.3f} to {new.high:.3f}"]
        for old, new in zip(before, after, strict=True)
    ]
    if teacher_accuracy is not None:
        head += ["accuracy before", "after", "of softmax"]
        for row, old, new in zip(rows, before, after, strict=True):
            row += [cell(old.accuracy), cell(new.accuracy), cell(teacher_accuracy)]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in [head, *rows]]
