"""The steps of `attenuator train`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attenuator.errors import InvalidRequest
from attenuator.rows import Columns
from attenuator.tuning import checkpoints
from attenuator.tuning.attention import exact
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.choices import changes_of
from attenuator.tuning.data import Data, Text, encode, read, refuse_same, split
from attenuator.tuning.figures import AnyFigures, figures, metric_of
from attenuator.tuning.output import READING, OutputFolder, next_command
from attenuator.tuning.plan import plan_of
from attenuator.tuning.run import Estimate, Outcome, run
from attenuator.tuning.train.labels import LabelPlan, listed, plan_labels
from attenuator.tuning.train.settings import TrainSettings

__all__ = ["train"]

Note = Callable[[str], None]
# Settings that change the weights that come out: a run goes on with these alone.
IDENTITY = (
    "attention",
    "regression",
    "epochs",
    "learning_rate",
    "batch_tokens",
    "evaluations",
    "patience",
    "seed",
    "truncate",
)


def read_all(settings: TrainSettings) -> tuple[Data, list[Text], list[Text], str]:
    """The data, the texts to train on, those held out, and what identifies the latter.

    Raises:
        InvalidRequest: a file cannot be read or has lines that cannot be trained on.
    """
    columns = Columns(settings.column, settings.pair_column)
    options = {
        "label_column": settings.label_column,
        "labelled": True,
        "scores": settings.regression,
        "kind": settings.format,
    }
    data = read(settings.data, columns, **options)  # type: ignore[arg-type]
    if settings.held_out is not None:
        held = read(settings.held_out, columns, **options)  # type: ignore[arg-type]
        refuse_same(data, held)
        return data, data.texts, held.texts, held.sha256
    kept, held_out = split(data.texts, settings.held_out_share, settings.seed)
    return data, kept, held_out, f"{settings.held_out_share:g}"


def identity(settings: TrainSettings, source: Path, data: Data, held_out: str) -> dict[str, Any]:
    """What a run that goes on must have in common with its beginning."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in (*IDENTITY, *READING)}
    return {"checkpoint": str(source), "data": data.sha256, "held_out": held_out} | values | changes_of(settings)


def train(settings: TrainSettings, source: Path, note: Note, *, shown: bool) -> tuple[Outcome, list[str]]:
    """Trains a checkpoint.

    Args:
        settings: of the command.
        source: the checkpoint's folder, or a config.json.
        note: called with sentences while it works.
        shown: whether a progress bar goes to stderr.

    Returns:
        How the run ended, and what to say of the result; nothing where it was interrupted.

    Raises:
        AttenuatorError: the checkpoint, the data or the output is at fault, or training diverged.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    begun = begin(settings, source, note)
    folder, trainable, task = begun.folder, begun.trainable, begun.trainable.task

    def announce(estimate: Estimate) -> None:
        folder.write(steps=estimate.steps)
        note(estimated(estimate, settings))

    def metrics(prediction: Any) -> dict[str, float]:
        return figures(prediction.predictions, prediction.label_ids, task).record()

    outcome = run(
        trainable.model,
        trainable.collator,
        begun.rows,
        begun.held_out,
        plan_of(settings, folder, evaluations=settings.evaluations, better=metric_of(task)),
        metrics=metrics,
        announce=announce,
        shown=shown,
    )
    if outcome.reason == "interrupted":
        return outcome, []
    trainable.save(settings.output)
    by_name = evaluate(trainable, begun.held_out, settings.batch_tokens)
    folder.finish(
        seconds=round(outcome.seconds, 1),
        ended=outcome.reason,
        done=outcome.steps,
        held_out={name: value.record() for name, value in by_name.items()},
        log=outcome.log,
    )
    return outcome, report(folder, trainable, outcome, by_name)


@dataclass(frozen=True, slots=True)
class Begun:
    """What is trained, and on what.

    Attributes:
        trainable: the model.
        rows: texts to train on.
        held_out: texts to evaluate on.
        folder: the output.
    """

    trainable: checkpoints.Trainable
    rows: Rows
    held_out: Rows
    folder: OutputFolder


def begin(settings: TrainSettings, source: Path, note: Note) -> Begun:
    """Reads texts and checkpoint, and begins the output's folder.

    Raises:
        AttenuatorError: one of them is at fault.
    """
    data, kept, held_out, held_out_name = read_all(settings)
    stored, task = checkpoints.stored_labels(source)
    labels = plan_labels(settings.data, data, stored, task, settings.regression)
    if not kept or not held_out:
        raise InvalidRequest(
            f"--held-out-share is {settings.held_out_share:g}, which leaves {len(kept)} texts to train on and "
            f"{len(held_out)} held out, must leave some of both"
        )
    kept_targets, held_targets = labels.targets(kept), labels.targets(held_out)
    trainable = checkpoints.load(
        source,
        settings.attention,
        settings=changes_of(settings),
        labels=labels.labels,
        task=labels.task,
        seed=settings.seed,
    )
    announce_model(trainable, labels, stored, note)
    rows = Rows(encode(kept, trainable.texts, truncate=settings.truncate), kept_targets)
    held_rows = Rows(encode(held_out, trainable.texts, truncate=settings.truncate), held_targets)
    folder = OutputFolder(settings.output, identity(settings, source, data, held_out_name), resume=settings.resume)
    lengths = sorted(rows.lengths)
    note(
        f"{len(kept):,} texts to train on, {len(held_out):,} held out; half of them have up to "
        f"{lengths[len(lengths) // 2]:,} tokens, the longest {lengths[-1]:,}"
    )
    return Begun(trainable, rows, held_rows, folder)


def announce_model(trainable: checkpoints.Trainable, labels: LabelPlan, stored: list[str], note: Note) -> None:
    """Says what is trained, and which of its weights begin anew."""
    count = len(trainable.new_weights)
    if count == len(trainable.model.state_dict()):
        note(f"all weights are drawn anew; attention: {trainable.attention}; labels: {listed(labels.labels)}")
    elif count:
        why = f", since its labels are {listed(stored)}" if labels.is_new else ""
        note(f"the checkpoint has no classifier for labels {listed(labels.labels)}{why}: its weights are drawn anew")


def estimated(estimate: Estimate, settings: TrainSettings) -> str:
    """The sentence about the time."""
    minutes = estimate.seconds / 60
    about = f"{minutes:.0f} min" if minutes >= 2 else f"{estimate.seconds:.0f} s"
    steps = f"{estimate.steps - estimate.steps_done:,} steps" + (
        f" of {estimate.steps:,}, the others are done," if estimate.steps_done else ""
    )
    if estimate.steps < estimate.steps_asked:
        share = settings.epochs * estimate.steps / estimate.steps_asked
        cut = f"; {settings.epochs:g} epochs would be {estimate.steps_asked:,} steps, of which --max-minutes leaves "
        return f"{steps} will take about {about}{cut}{share:.2g} epochs"
    return f"{steps} will take about {about}"


def evaluate(trainable: checkpoints.Trainable, rows: Rows, batch_tokens: int) -> dict[str, AnyFigures]:
    """Figures as it was trained and, where that differs, at the exact value."""

    def measured() -> AnyFigures:
        logits = predict(trainable.model, rows, trainable.collator, batch_tokens)
        return figures(logits, rows.targets, trainable.task)  # type: ignore[arg-type]

    by_name = {"as trained": measured()}
    if trainable.has_knobs:
        with exact(trainable.inner):
            by_name["at the exact value"] = measured()
    return by_name


def report(
    folder: OutputFolder, trainable: checkpoints.Trainable, outcome: Outcome, by_name: dict[str, AnyFigures]
) -> list[str]:
    """What is said at the end."""
    lines = [f"{folder.path}: {outcome.ended}, {outcome.seconds / 60:.1f} min; the best weights are kept"]
    for name, value in by_name.items():
        lines.append(f"  {value.sentence()}" + (f", {name}" if len(by_name) > 1 else ""))
    lines.append(f"  next: {next_command(folder.path)}")
    return lines
