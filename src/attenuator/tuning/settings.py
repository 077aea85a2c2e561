"""The settings that all commands have that train: data, output, time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from attenuator.commandline import CommandSettings, Threads
from attenuator.rows import Format

__all__ = ["ABORTED", "Epochs", "LearningRate", "Minutes", "RunSettings"]

# What a command says that a second Ctrl-C ended, or one before its first step.
ABORTED = "interrupted at once; the same command with --resume goes on after the last checkpoint, if there is one"
# Far above what is of use; without bounds, `inf` would be a number of steps.
Epochs = Annotated[float, Field(gt=0, le=100_000)]
LearningRate = Annotated[float, Field(gt=0, le=1)]
Minutes = Annotated[float, Field(gt=0, le=1_000_000)]


class RunSettings(CommandSettings):
    """Base of the settings of commands that train."""

    data: Path
    """File of texts to learn from: CSV, TSV or JSON lines, by its ending."""
    output: Path
    """Folder of the checkpoint to write, new or empty."""
    held_out: Path | None = None
    """File of texts to evaluate on, in the form of --data; by default a part of the data is held out."""
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The part of the data that is held out, without --held-out."""
    column: str | None = None
    """Column (CSV, TSV) or field (JSON lines) that holds the text; `text` by default."""
    pair_column: str | None = None
    """Column or field with the second text of each pair."""
    label_column: str | None = None
    """Column or field with the label; `label`, or `labels` with a list of them, by default."""
    format: Format | None = None
    """Format of the data, where its name does not tell."""
    truncate: bool = False
    """Cut texts that are longer than the model takes, instead of refusing the file."""
    batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Tokens of a batch, padding included: memory and time of a step grow with it."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Evaluations without a gain after which training ends; 0: it goes on to the end."""
    epochs: Epochs = 3.0
    """Passes over the texts."""
    learning_rate: LearningRate = 5e-5
    """The highest one: it rises at the beginning and falls to 0 at the end."""
    max_minutes: Minutes | None = None
    """Time that training may take; its steps are cut to what fits."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of new weights, the choice of the texts held out, their order and everything else that is drawn."""
    threads: Threads = None
    """Threads; as many as there are cores by default."""
    resume: bool = False
    """Go on with a run into this folder that was stopped."""
