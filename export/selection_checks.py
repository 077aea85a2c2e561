"""What a caller may ask of the selection of tokens, refused in a sentence where a model has none, or not so."""

from __future__ import annotations

import torch

from attenuator.errors import ExportError
from attenuator.export.selection import DROPPED, MERGES, NONE, SCHEDULES, can_merge, can_select
from attenuator.export.trace import PackedClassifier

__all__ = ["check_selection", "check_selection_names", "why_not"]


def check_selection_names(schedule: str | None, merge: str) -> None:
    """Refuses a schedule, or a way to merge, that does not exist.

    Raises:
        ExportError: that is so.
    """
    if schedule not in (*SCHEDULES, NONE, None):
        raise ExportError(f"schedule is '{schedule}', must be one of: {', '.join((*SCHEDULES, NONE))}")
    if merge not in MERGES:
        raise ExportError(f"merge is '{merge}', must be one of: {', '.join(MERGES)}")


def check_selection(classifier: PackedClassifier, schedule: str | None) -> None:
    """Refuses a schedule where no token is left out, and to merge where none is, or none can be attended to as several.

    Args:
        classifier: with its selection.
        schedule: what the caller asked for, None for nothing.

    Raises:
        ExportError: that is so.
    """
    selection = classifier.selection
    if schedule not in (NONE, None) and not selection.layers:
        raise ExportError(
            f"schedule is '{schedule}', but this bundle selects no tokens: {why_not(classifier)}; must be {NONE}"
        )
    if not selection.merges:
        return
    reason = ""
    if not selection.layers:
        reason = "this bundle selects no tokens, so that none are left out"
    elif not can_merge(classifier.operator):
        reason = f"{classifier.operator.name} attends to no row that stands for several"
    if reason:
        raise ExportError(f"merge is '{selection.merge}', but {reason}; must be {DROPPED}")
    with torch.no_grad():
        classifier(*classifier.example())  # asks for positions where its layers need any


def why_not(classifier: PackedClassifier) -> str:
    """Why no layer selects, whatever the schedule."""
    if classifier.architecture.reads_tokens:
        return "it classifies every token, so that all go on"
    if classifier.architecture.convolves(classifier.model.config):
        return "its attention has a convolution over neighbouring rows"
    if not can_select(classifier.operator):
        return f"{classifier.operator.name} does not say what each row matters"
    return "it has one layer, which computes the first token alone"
