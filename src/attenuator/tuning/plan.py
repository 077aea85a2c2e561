"""Plan of a run: passes, rates, times. Made of the settings that commands which train share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attenuator.tuning.output import OutputFolder
from attenuator.tuning.settings import RunSettings

__all__ = ["Plan", "plan_of"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train.

    Attributes:
        steps_folder: where the checkpoints of the unfinished run are; one that is there is gone on from.
        epochs: passes over the texts.
        learning_rate: the highest; it rises over `warmup` of the steps, then falls to 0 as `schedule` says.
        batch_tokens: of a batch, padding included.
        seed: of order, dropout and hashes.
        max_minutes: the steps are cut to what is predicted to fit, and the run ends there at the latest.
        evaluations: how often an epoch is evaluated on the texts held out, evenly.
        least_evaluations: of the whole run, however short.
        patience: evaluations without a gain after which training ends; 0 goes on to the end.
        better: the metric that says which weights to keep, larger is better; None keeps the last ones.
        max_steps: the steps of a run that goes on, as they were planned; None plans them.
        weight_decay: of AdamW.
        warmup: share of the steps.
        schedule: as transformers names it.
        save_minutes: between checkpoints that allow to go on after the process was killed.
        adam_beta2: of AdamW.
    """

    steps_folder: Path
    epochs: float = 3.0
    learning_rate: float = 5e-5
    batch_tokens: int = 4096
    seed: int = 0
    max_minutes: float | None = None
    evaluations: int = 1
    least_evaluations: int = 1
    patience: int = 0
    better: str | None = None
    max_steps: int | None = None
    weight_decay: float = 0.01
    warmup: float = 0.06
    schedule: str = "cosine"
    save_minutes: float = 2.0
    adam_beta2: float = 0.999


def plan_of(settings: RunSettings, folder: OutputFolder, **further: Any) -> Plan:
    """The plan of a command's run, that of the unfinished run where there is one in the folder.

    Args:
        settings: of the command.
        folder: its output.
        further: fields of `Plan` that no flag sets.
    """
    return Plan(
        steps_folder=folder.steps,
        epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
        max_minutes=settings.max_minutes,
        patience=settings.patience,
        max_steps=folder.record.get("steps"),
        **further,
    )
