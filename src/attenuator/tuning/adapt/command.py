"""A run of `attenuator adapt`: its folder, what it says, and whether it reached what was asked for."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attenuator.errors import InvalidRequest
from attenuator.ops.spec import Knob
from attenuator.tuning.adapt.keep import TaughtKeep
from attenuator.tuning.adapt.keep_command import run_keep
from attenuator.tuning.adapt.measuring import Figures, knob_values, table
from attenuator.tuning.adapt.pipeline import (
    Adapted,
    Texts,
    choose,
    knob_of,
    load_student,
    load_teacher,
    refuse_other_attention,
    teach,
)
from attenuator.tuning.adapt.settings import COMMAND, AdaptSettings
from attenuator.tuning.adapt.texts import TextFiles
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.choices import changes_of, settings_class
from attenuator.tuning.output import READING, OutputFolder, next_command
from attenuator.tuning.plan import plan_of
from attenuator.tuning.run import Estimate

__all__ = ["note", "run"]

# What changes the weights that come out: a run goes on with these alone.
IDENTITY = (
    "attention",
    "held_out_share",
    "truncate",
    "epochs",
    "learning_rate",
    "batch_tokens",
    "exact_share",
    "attention_weight",
    "patience",
    "seed",
    "positions",
    "max_tokens",
)


def note(sentence: str) -> None:
    """Says something on stderr."""
    print(f"attenuator {COMMAND}: {sentence}", file=sys.stderr, flush=True)


def identity(settings: AdaptSettings, source: Path, files: TextFiles) -> dict[str, Any]:
    """What the run is begun with."""
    return {
        "checkpoint": str(source),
        **files.identity,
        **{name: getattr(settings, name) for name in (*IDENTITY, *READING)},
        "attention settings": changes_of(settings),
    }


def run(settings: AdaptSettings, source: Path) -> tuple[Adapted | TaughtKeep, bool]:
    """Adapts a checkpoint: to another attention, or to a small `keep`.

    Returns:
        What came out, and whether it has the agreement asked for.

    Raises:
        AttenuatorError: it cannot be adapted, or the folder not be written.
    """
    if settings.keep:
        return run_keep(settings, source, note)
    clock = time.monotonic()
    if settings.schedule is not None:
        raise InvalidRequest("--schedule is given without --keep, whose selection of tokens it arranges")
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    files = TextFiles(settings)
    teacher = load_teacher(source, settings.positions, settings.max_tokens)
    refuse_other_attention(source, teacher, settings.attention, changes_of(settings))
    texts = files.tokenized(teacher)
    folder = OutputFolder(settings.output, identity(settings, source, files), resume=settings.resume)
    chosen, before = begun(settings, folder, teacher, texts)
    note(f"learns {settings.attention} attention with " + listed(asdict(chosen)))
    student = load_student(source, settings.attention, chosen, settings.positions, settings.max_tokens)
    adapted = teach(
        student,
        teacher,
        chosen,
        texts,
        plan_of(settings, folder, evaluations=2, weight_decay=0.0, warmup=0.05, adam_beta2=0.98),
        exact_share=settings.exact_share,
        attention_weight=settings.attention_weight,
        before=before,
        announce=partial(announce, folder),
        measured=partial(keep_figures, folder, knob_of(settings.attention), len(texts.held_out)),
        shown=True,
        begun=clock,
    )
    if adapted.outcome.reason == "interrupted":
        return adapted, False
    student.save(folder.path)
    return adapted, finish(settings, folder, adapted, len(texts.held_out))


def begun(
    settings: AdaptSettings, folder: OutputFolder, teacher: Trainable, texts: Texts
) -> tuple[Any, list[Figures] | None]:
    """Settings of the attention and figures before training: those of a run that goes on, or the former chosen now.

    Raises:
        InvalidRequest: the record of the run that is to go on was changed.
    """
    record = folder.record
    if "settings" not in record:
        chosen, tried = choose(teacher, texts.learnt, settings.attention, changes_of(settings))
        folder.write(settings=asdict(chosen), tried=[asdict(fit) for fit in tried])
        nearest = sorted((fit for fit in tried if fit.expected_error is not None), key=lambda fit: fit.error)
        note(f"of {len(tried)} settings tried: " + "; ".join(described(fit, chosen) for fit in nearest))
    knob = knob_of(settings.attention)
    try:
        chosen = settings_class(settings.attention)(**record["settings"])
        before = [Figures.of_json(row) for row in record["before"]] if "before" in record else None
        is_whole = before is None or [row.value for row in before] == knob_values(knob, getattr(chosen, knob.name))
    except (TypeError, ValueError):
        raise folder.unreadable() from None
    if not is_whole:
        raise folder.unreadable()
    return chosen, before


def announce(folder: OutputFolder, estimate: Estimate) -> None:
    """Keeps the number of steps, and says how long they will take."""
    folder.write(steps=estimate.steps)
    cut = f", cut from {estimate.steps_asked} by the time" if estimate.steps < estimate.steps_asked else ""
    note(f"{estimate.steps - estimate.steps_done} steps{cut}, about {estimate.seconds / 60:.1f} minutes")


def keep_figures(folder: OutputFolder, knob: Knob, texts: int, before: list[Figures]) -> None:
    """Keeps the figures before training, and says them."""
    folder.write(before=[figures.as_json() for figures in before])
    shown = "; ".join(f"{figures.agreement:.3f} at {knob.name} {figures.value:g}" for figures in before)
    note(f"agreement before training, on {texts} texts: {shown}")


def finish(settings: AdaptSettings, folder: OutputFolder, adapted: Adapted, texts: int) -> bool:
    """Ends the run's record and shows the figures; whether they have the agreement asked for."""
    folder.finish(
        steps_done=adapted.outcome.steps,
        seconds=round(adapted.outcome.seconds, 1),
        ended=adapted.outcome.reason,
        losses=[row["loss"] for row in adapted.outcome.log if "loss" in row],
        accuracy_of_teacher=adapted.teacher_accuracy,
        after=[figures.as_json() for figures in adapted.after],
    )
    knob = knob_of(settings.attention)
    for line in table(knob, adapted.teacher_accuracy, adapted.before, adapted.after):
        print(line)
    reached = verdict(settings, adapted, float(folder.record["settings"][knob.name]), texts)
    note(f"'{folder.path}' is written; next: {next_command(folder.path)}")
    return reached


def described(fit: Any, chosen: Any) -> str:
    """What a trial of settings gave: how they differ from those that were chosen, and their error."""
    values, others = asdict(fit.settings), asdict(chosen)
    differing = {name: value for name, value in values.items() if value != others[name]} or others
    return (
        f"with {listed(differing)} attention outputs are {fit.error:.2f} off, without sampling {fit.expected_error:.2f}"
    )


def listed(values: dict[str, Any]) -> str:
    """Settings for a sentence."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def verdict(settings: AdaptSettings, adapted: Adapted, value: float, texts: int) -> bool:
    """Says what was reached; whether that is the agreement asked for."""
    knob, figures = knob_of(settings.attention), adapted.at(value)
    at = f"{figures.agreement:.3f} at {knob.name} {value:g} on {texts} texts; {adapted.outcome.ended}"
    reached = settings.min_agreement is None or figures.agreement >= settings.min_agreement
    if reached:
        note(f"agreement with the softmax model is {at}")
    else:
        note(
            f"the agreement asked for, {settings.min_agreement:g}, was NOT reached: it is {at}. Longer "
            f"training (--max-minutes, --epochs), more texts, or a larger {knob.name} may reach it"
        )
    return reached
