"""The texts whose answers a chosen bundle changes, for its report."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.calibration.goals import default_setting
from attenuator.commands.calibrate.pipeline import Outcome
from attenuator.runtime.scores import SCORES, agrees, predict
from attenuator.tune.result import Changed
from attenuator.tune.texts import Parts

SHOWN = 20
EXCERPT = 240  # characters


def default_logits(outcome: Outcome, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Logits `[texts, labels]` of each text at the default of its length."""
    chosen = [default_setting(outcome.calibration, int(length)).knobs for length in tokens]
    return np.stack([outcome.at(knobs)[place] for place, knobs in enumerate(chosen)])


def alike(outcome: Outcome, manifest: Manifest, parts: Parts) -> str:
    """A sentence on what the judging texts have in common, and which to give instead; empty where they differ.

    Args:
        outcome: of the exact bundle's calibration.
        manifest: of that bundle.
        parts: the texts.
    """
    exact, truth = outcome.exact, parts.judging.truth
    if agrees(np.broadcast_to(exact[0], exact.shape), exact, task=manifest.task, thresholds=manifest.thresholds).all():
        common = "get the same answer"
    elif truth is not None and (truth == truth[0]).all():
        common = "have the same label"
    else:
        return ""
    others = "texts of low and of high scores" if manifest.task == "regression" else "texts of every label"
    return f"all of these texts {common}, and what is measured on them says little about others: give {others}"


def changed_texts(outcome: Outcome, manifest: Manifest, parts: Parts) -> tuple[list[Changed], int]:
    """Texts whose answers at the default are not the exact ones, those first that the exact answer was surest of.

    Args:
        outcome: of the bundle's calibration.
        manifest: of the bundle.
        parts: the texts.

    Returns:
        At most `SHOWN` of them, and how many there are.
    """
    logits = default_logits(outcome, parts.judging.tokens)
    differ = np.flatnonzero(~agrees(logits, outcome.exact, task=manifest.task, thresholds=manifest.thresholds))
    score = SCORES[manifest.task]

    def answer(row: npt.NDArray[np.float32]) -> tuple[str, float]:
        thresholds = manifest.thresholds if manifest.task == "multi_label" else None
        predicted = predict(score(row), row, labels=manifest.labels, thresholds=thresholds)
        named = predicted.label if predicted.labels is None else ", ".join(predicted.labels) or "none"
        return named, predicted.score

    rows = []
    for place in differ.tolist():
        text = parts.items[place].excerpt
        shortened = text if len(text) <= EXCERPT else f"{text[:EXCERPT].rstrip()} ..."
        rows.append(Changed(shortened, answer(outcome.exact[place]), answer(logits[place])))
    rows.sort(key=lambda row: -abs(row.exact[1]))
    return rows[:SHOWN], len(rows)
