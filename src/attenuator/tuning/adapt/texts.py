"""The texts of `attenuator adapt`: read, divided, tokenized; labels where the file has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.errors import InvalidRequest
from attenuator.rows import Columns, file_rows, format_of
from attenuator.texts import label_places
from attenuator.tuning.adapt.pipeline import Texts
from attenuator.tuning.adapt.settings import AdaptSettings
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.data import LABEL, LABELS, Data, Text, encode, read, refuse_same, split

__all__ = ["TextFiles"]

FEWEST_HELD_OUT = 20


class TextFiles:
    """The files of a run.

    Args:
        settings: which files, and how to read them.

    Raises:
        InvalidRequest: a file cannot be read, or has too few texts.
    """

    def __init__(self, settings: AdaptSettings) -> None:
        self.settings = settings
        self.data = self._read(settings.data)
        self.other = None if settings.held_out is None else self._read(settings.held_out)
        if self.other is None:
            self.learnt, self.held_out = split(self.data.texts, settings.held_out_share, settings.seed)
        else:
            refuse_same(self.data, self.other)
            self.learnt, self.held_out = self.data.texts, self.other.texts
        if len(self.held_out) < FEWEST_HELD_OUT or not self.learnt:
            raise InvalidRequest(
                f"{len(self.learnt)} texts are to learn from and {len(self.held_out)} to compare answers on, must be "
                f"at least 1 and {FEWEST_HELD_OUT}: give more texts, or hold others back (equal texts stay together)"
            )

    def _read(self, path: Path) -> Data:
        settings = self.settings
        columns = Columns(settings.column, settings.pair_column)
        first = next(file_rows(str(path), format_of(str(path), settings.format), columns), None)
        names = {settings.label_column} if settings.label_column else {LABEL, LABELS}
        labelled = bool(settings.label_column) or (first is not None and not names.isdisjoint(first.columns))
        return read(path, columns, label_column=settings.label_column, labelled=labelled, kind=settings.format)

    @property
    def identity(self) -> dict[str, str]:
        """What a run is begun with, of the texts."""
        other = {} if self.other is None else {"held-out texts": self.other.sha256}
        return {"texts": self.data.sha256, **other}

    def tokenized(self, model: Trainable) -> Texts:
        """The texts as a model takes them.

        Raises:
            InvalidRequest: names the first text that cannot be tokenized, is too long, or has a label that the model
                does not know.
        """
        truncate = self.settings.truncate
        learnt, held_out = (encode(texts, model.texts, truncate=truncate) for texts in (self.learnt, self.held_out))
        return Texts(learnt, held_out, targets(self.held_out, model.labels, model.task))


def targets(texts: Sequence[Text], labels: list[str], task: Task) -> npt.NDArray[Any] | None:
    """Right answers, `[texts]` indices or `[texts, labels]` of 0 and 1; None where a text has none, or has scores.

    Args:
        texts: with the names of their labels, or their places among the model's.
        labels: of the model, in the order of its logits.
        task: what the logits mean.

    Raises:
        InvalidRequest: a label that the model does not know.
    """
    if task == "regression" or any(text.labels is None for text in texts):
        return None
    places = label_places((label for text in texts for label in text.labels or ()), labels)
    answers = np.zeros((len(texts), len(labels)), dtype=np.int64)
    for row, text in zip(answers, texts, strict=True):
        for label in text.labels or ():
            if label not in places:
                raise InvalidRequest(
                    f"{text.where} has the label '{label}', must be one of the model's: {', '.join(labels)}"
                )
            row[places[label]] = 1
    return answers if task == "multi_label" else answers.argmax(axis=1)
