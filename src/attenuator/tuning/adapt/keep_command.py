"""`attenuator adapt --keep` as a command, and `adapt_keep` for programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attenuator.errors import InvalidRequest
from attenuator.export import taught
from attenuator.export.choose import AGREEMENT
from attenuator.tuning.adapt.keep import TaughtKeep, finished, lines, summary, teach_keep
from attenuator.tuning.adapt.pipeline import load_teacher
from attenuator.tuning.adapt.selecting import KEEP, load_keep_student
from attenuator.tuning.adapt.settings import BATCH_TEXTS, SETTINGS, AdaptSettings
from attenuator.tuning.adapt.texts import TextFiles
from attenuator.tuning.choices import changes_of
from attenuator.tuning.output import READING, OutputFolder, next_command
from attenuator.tuning.plan import Plan, plan_of

__all__ = ["adapt_keep", "run_keep"]

# What the teaching of a selection takes in the place of defaults.
LEARNING_RATE, EPOCHS, PATIENCE, EVALUATIONS = 5e-5, 200.0, 5, 10
HELD_OUT_SHARE = 0.2  # by which a program decides; a person has the table
# Flags of the other way to adapt.
OTHERS = ("attention", "exact_share", "attention_weight", "positions", "max_tokens")
IDENTITY = ("held_out_share", "truncate", "epochs", "learning_rate", "batch_tokens", "patience", "seed", "schedule")


def refuse_others(settings: AdaptSettings) -> None:
    """Refuses flags that say nothing about a selection.

    Raises:
        InvalidRequest: names the first.
    """
    named = [name for name in OTHERS if name in settings.model_fields_set] + list(changes_of(settings))
    if named:
        flag = named[0].replace("_", "-")
        raise InvalidRequest(
            f"--{flag} is given beside --keep, which teaches softmax attention as it is; give one of them"
        )


def plan_for(settings: AdaptSettings, folder: OutputFolder, lengths: Any) -> Plan:
    """The plan of the command's run; what is not set is what teaching a selection takes.

    Args:
        settings: of the command.
        folder: its output.
        lengths: tokens of the texts to learn from, `[texts]`.
    """
    own = {
        "learning_rate": LEARNING_RATE,
        "batch_tokens": max(1, round(BATCH_TEXTS * float(np.mean(lengths)))),
        "epochs": EPOCHS,
        "patience": PATIENCE,
    }
    unset = {name: value for name, value in own.items() if name not in settings.model_fields_set}
    fixed = {"least_evaluations": EVALUATIONS, "weight_decay": 0.0, "warmup": 0.05, "adam_beta2": 0.98}
    return plan_of(settings.model_copy(update=unset), folder, **fixed)


def taught_by(settings: AdaptSettings, source: Path, say: Callable[[str], None]) -> TaughtKeep:
    """Teaches a checkpoint to bear a small `keep`, and shows what that gained.

    Args:
        settings: of the command.
        source: the checkpoint.
        say: called with a sentence at each stage.

    Raises:
        AttenuatorError: it cannot be taught, or the folder not be written.
    """
    clock = time.monotonic()
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    refuse_others(settings)
    files = TextFiles(settings)
    teacher = load_teacher(source, recordable=False)
    if (teacher.source / taught.FILE).exists():
        raise InvalidRequest(
            f"the checkpoint '{source}' was taught already and would lose what it learnt; give the one that it was "
            f"made of, or a copy without {taught.FILE}"
        )
    original = load_keep_student(source, settings.schedule or "first")
    texts = files.tokenized(teacher)
    identity = {name: getattr(settings, name) for name in (*IDENTITY, *READING)}
    began_with = {KEEP.name: True, "checkpoint": str(source), **files.identity, **identity}
    folder = OutputFolder(settings.output, began_with, resume=settings.resume)
    plan = plan_for(settings, folder, [len(text.token_ids) for text in texts.learnt])
    result = teach_keep(teacher, original, texts, folder, plan, schedule=settings.schedule, say=say, begun=clock)
    for line in lines(result) if result.after else ():
        say(line)
    return result


def run_keep(settings: AdaptSettings, source: Path, say: Callable[[str], None]) -> tuple[TaughtKeep, bool]:
    """The command; arguments and errors as `taught_by` has them.

    Returns:
        What came out, and whether a `keep` below 1 has the agreement asked for.
    """
    result = taught_by(settings, source, say)
    if not result.after:
        return result, False
    say(summary(result, settings.min_agreement or AGREEMENT))
    say(f"'{settings.output}' is written; next: {next_command(settings.output)}")
    return result, settings.min_agreement is None or result.cheapest(settings.min_agreement) is not None


def adapt_keep(
    checkpoint: Path, texts: Path, output: Path, *, minutes: float, threads: int | None, progress: Callable[[str], None]
) -> TaughtKeep:
    """As the command with these options does; takes up a run that was stopped, and what one that is finished found.

    Args:
        checkpoint: a softmax classifier's folder.
        texts: a file of texts such as it will get, as `attenuator adapt --data` takes it; long ones are cut.
        output: folder of the checkpoint to write, with the taught weights beside its own.
        minutes: that it may take.
        threads: as many as there are cores by default.
        progress: called with a sentence at each stage.

    Raises:
        AttenuatorError: it cannot be taught, or the folder not be written.
        KeyboardInterrupt: Ctrl-C.
    """
    if (before := finished(output)) is not None:
        return before
    settings = SETTINGS(
        keep=True, data=texts, output=output, max_minutes=minutes, truncate=True, threads=threads,
        held_out_share=HELD_OUT_SHARE, resume=output.exists(),
    )  # fmt: skip
    result = taught_by(settings, checkpoint, progress)
    if not result.after:
        raise KeyboardInterrupt
    return result
