"""Labels of a file beside a checkpoint's: its own, places among its own, or new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.errors import InvalidRequest
from attenuator.texts import label_places
from attenuator.tuning.data import Data, Text

__all__ = ["LabelPlan", "plan_labels"]

# With fewer nothing can be learned and nothing held out.
FEWEST_TEXTS = 20
# Of the number of texts: with more, the column holds the texts themselves, or their ids.
MOST_LABELS = 0.9
LABELS_SHOWN = 8
# Name of the output of a regression that is begun.
SCORE = "score"


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """How texts become targets.

    Attributes:
        labels: of the model, in the order of its logits.
        task: `single_label`, `multi_label`, or `regression` with one name, that of the score.
        places: index of a label by its name in the file; none in a regression.
        is_new: whether the checkpoint's classifier is of no use.
    """

    labels: list[str]
    task: Task
    places: dict[str, int]
    is_new: bool

    def targets(self, texts: Sequence[Text]) -> npt.NDArray[Any]:
        """int64 `[texts]` for one label a text, float32 `[texts, labels]` for several or for a score.

        Raises:
            InvalidRequest: a text has a label that there is not.
        """
        if self.task == "regression":
            return np.array([[float(label) for label in text.labels or ()] for text in texts], dtype=np.float32)
        rows = [[self._place(text, label) for label in text.labels or ()] for text in texts]
        if self.task == "single_label":
            return np.array([row[0] for row in rows], dtype=np.int64)
        targets = np.zeros((len(texts), len(self.labels)), dtype=np.float32)
        for target, row in zip(targets, rows, strict=True):
            target[row] = 1.0
        return targets

    def _place(self, text: Text, label: str) -> int:
        if label not in self.places:
            raise InvalidRequest(f"{text.where} has the label {ascii(label)[:80]}, must be {listed(self.places)}")
        return self.places[label]


def listed(names: Sequence[str] | dict[str, int]) -> str:
    """Labels for a sentence."""
    shown = [ascii(name)[:40] for name in names]
    return f"one of: {', '.join(shown[:LABELS_SHOWN])}" + (", ..." if len(shown) > LABELS_SHOWN else "")


def plan_labels(path: Path, data: Data, stored: Sequence[str], task: Task, scores: bool) -> LabelPlan:
    """Decides what the labels of a file are to a checkpoint.

    Args:
        path: of the file, for sentences.
        data: of it.
        stored: the checkpoint's labels, in the order of its logits.
        task: the checkpoint's.
        scores: whether labels are numbers to learn.

    Raises:
        InvalidRequest: there are too few texts, or one label alone.
    """
    if len(data.texts) < FEWEST_TEXTS:
        count = "1 text" if len(data.texts) == 1 else f"{len(data.texts)} texts"
        raise InvalidRequest(f"{path} has {count}, must have at least {FEWEST_TEXTS} to train on and to hold out")
    if scores:
        is_new = task != "regression"
        return LabelPlan([SCORE] if is_new else list(stored), "regression", {}, is_new)
    names = data.label_names
    if len(names) < 2:
        has = f"one label only, {ascii(names[0])[:80]}" if names else "no label on any line"
        raise InvalidRequest(f"{path} has {has}, must have at least 2 for a model to tell apart")
    if task != "regression":  # a classifier whose places may be kept
        own_task: Task = "multi_label" if data.multi_label or task == "multi_label" else "single_label"
        is_new = own_task != task
        places = label_places(names, stored)
        if set(names) <= places.keys():
            return LabelPlan(list(stored), own_task, places, is_new)
    if not data.multi_label and len(names) > MOST_LABELS * len(data.texts):
        raise InvalidRequest(
            f"{path} has {len(names)} different labels on {len(data.texts)} texts, must have several texts of a label; "
            "--label-column names another column or field"
        )
    new_task: Task = "multi_label" if data.multi_label else "single_label"
    return LabelPlan(names, new_task, {name: index for index, name in enumerate(names)}, True)
