"""Thresholds of multi-label models: given for each label, or fitted on labelled texts.

An answer lists a label where its score, the sigmoid of its logit, is at or above its threshold; 0.5 unless told
otherwise. Fitting chooses, for each label by itself, the threshold with the largest F1 on the texts (Lipton, Elkan and
Naryanaswamy, "Optimal Thresholding of Classifiers to Maximize F1 Measure", 2014, section 4). So few texts decide it
that what it wins there is no estimate of what it wins elsewhere: measure on other texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.errors import ExportError
from attenuator.ops.knobs import shown

__all__ = [
    "DEFAULT",
    "FEWEST",
    "Thresholds",
    "best_threshold",
    "by_label",
    "chosen",
    "f1",
    "fit",
    "read",
    "refuse_two_ways",
    "some",
]

DEFAULT = 0.5
# With fewer texts that have a label, or fewer that lack it, its threshold stays where it is.
FEWEST = 10
LABELS_NAMED = 5

# In the order of the labels, or by label; labels that are not named keep the default.
Thresholds = Sequence[float] | Mapping[str, float]


def read(text: str) -> Thresholds:
    """The thresholds that `--thresholds` gives: numbers between commas, or a JSON file of a list or an object.

    Raises:
        ExportError: the file cannot be read, or the text is neither.
    """
    allowed = "numbers from 0 to 1 between commas, in the order of the labels, or a file named *.json"
    if not text.endswith(".json"):
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            raise ExportError(f"thresholds is '{text}', must be {allowed}") from None
    try:
        content = json.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"the thresholds in '{text}' cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ExportError(f"the thresholds in '{text}' cannot be read: {error}") from None
    if not isinstance(content, list | dict):
        raise ExportError(
            f"'{text}' is {shown(content)}, must be a list of thresholds or an object with thresholds by label"
        )
    return content


def chosen(
    task: Task, labels: Sequence[str], requested: Thresholds | None, fitted_on: Path | str | None = None
) -> list[float]:
    """The thresholds asked for, 0.5 for each label where none are; nothing for a model that is not multi-label.

    Args:
        task: of the model.
        labels: of the model.
        requested: not checked yet.
        fitted_on: texts on which they are to be fitted instead.

    Raises:
        ExportError: the model has none, there are two ways to set them, or they do not fit its labels.
    """
    refuse_two_ways(requested, fitted_on)
    if task == "multi_label":
        return by_label({} if requested is None else requested, labels)
    for field, value in (("thresholds", requested), ("fit_thresholds", fitted_on)):
        if value is not None:
            raise ExportError(
                f"{field} is set, but the model's task is {task}: only multi-label models "
                "(problem_type 'multi_label_classification') have thresholds"
            )
    return []


def refuse_two_ways(requested: object, fitted_on: object) -> None:
    """Refuses thresholds that are set and to be fitted as well.

    Raises:
        ExportError: both are there.
    """
    if requested is not None and fitted_on is not None:
        raise ExportError("thresholds and fit_thresholds are both set, must be one of them: given, or fitted on texts")


def by_label(thresholds: Thresholds, labels: Sequence[str]) -> list[float]:
    """One threshold a label.

    Args:
        thresholds: see `Thresholds`; not checked yet.
        labels: of the model.

    Raises:
        ExportError: too few or too many, an unknown label, or a value that is not a number from 0 to 1.
    """
    if isinstance(thresholds, Mapping):
        for name in thresholds:
            if name not in labels:
                raise ExportError(
                    f"thresholds names the label {ascii(name)[:80]}, must be one of the model's: {some(labels)}"
                )
        values = [thresholds.get(label, DEFAULT) for label in labels]
    else:
        values = list(thresholds)
        if len(values) != len(labels):
            raise ExportError(
                f"thresholds has {len(values)} values, must have {len(labels)}, one for each label: {some(labels)}"
            )
    for label, value in zip(labels, values, strict=True):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and 0 <= value <= 1):
            raise ExportError(f"the threshold of label '{label}' is {shown(value)}, must be a number from 0 to 1")
    return [float(value) for value in values]


def fit(
    scores: npt.NDArray[np.float64],
    truth: npt.NDArray[np.bool_],
    labels: Sequence[str],
    note: Callable[[str], None] = lambda sentence: None,
) -> list[float]:
    """The threshold of each label with the largest F1; 0.5 where fewer than `FEWEST` texts have it, or lack it.

    Args:
        scores: `[texts, labels]`, each from 0 to 1.
        truth: `[texts, labels]`, whether the text has the label.
        labels: of the model.
        note: called with a sentence about what was fitted, and with one about labels that keep 0.5.
    """
    having = truth.sum(axis=0)
    enough = np.minimum(having, len(truth) - having) >= FEWEST
    fitted = [
        best_threshold(scores[:, index], truth[:, index]) if enough[index] else DEFAULT for index in range(len(labels))
    ]
    if enough.any():
        before, after = (
            np.mean([f1(scores[:, index] >= low, truth[:, index]) for index, low in enumerate(lows) if enough[index]])
            for lows in ([DEFAULT] * len(labels), fitted)
        )
        note(
            f"thresholds are fitted on {len(truth)} texts for {enough.sum()} of {len(labels)} labels: their mean F1 "
            f"there rises from {before:.3f} to {after:.3f}; measure on other texts what that is worth"
        )
    if not enough.all():
        few = [f"'{label}' ({count})" for label, count, kept in zip(labels, having, ~enough, strict=True) if kept]
        note(
            f"thresholds stay {DEFAULT:g} for {len(few)} of {len(labels)} labels, which fewer than {FEWEST} of "
            f"{len(truth)} texts have, or lack: {some(few)}"
        )
    return fitted


def best_threshold(scores: npt.NDArray[np.float64], truth: npt.NDArray[np.bool_]) -> float:
    """The threshold with the largest F1: midway between two neighbouring scores, in as few decimals as tell them apart.

    Where several are equally good, the one closest to 0.5.

    Args:
        scores: `[texts]`, each from 0 to 1.
        truth: `[texts]`, at least one of them true.
    """
    order = np.argsort(-scores, kind="stable")
    upper = scores[order]
    lower = np.append(upper[1:], 0.0)
    # With the texts up to here chosen: F1 = 2 hits / (chosen + having the label).
    value = 2 * np.cumsum(truth[order]) / (np.arange(1, len(scores) + 1) + truth.sum())
    value[:-1][upper[:-1] == upper[1:]] = -1  # equal scores lie on one side
    best = np.flatnonzero(value == value.max())
    middle = (lower[best] + upper[best]) / 2
    index = best[np.abs(middle - DEFAULT).argmin()]
    for decimals in range(2, 17):
        threshold = round(float(lower[index] + upper[index]) / 2, decimals)
        if lower[index] < threshold <= upper[index]:
            return threshold
    return float(upper[index])


def f1(chosen: npt.NDArray[np.bool_], truth: npt.NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall; both bool `[texts]`, at least one text true."""
    return float(2 * (chosen & truth).sum() / (chosen.sum() + truth.sum()))


def some(names: Sequence[str]) -> str:
    """The first few names, for a sentence."""
    rest = len(names) - LABELS_NAMED
    return ", ".join(names[:LABELS_NAMED]) + (f" and {rest} more" if rest > 0 else "")
