"""A run of `transformers.Trainer`: batches by tokens, an estimate of the time, a deadline, Ctrl-C, `--resume`."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from attenuator.errors import AttenuatorError
from attenuator.export.sentences import disk_failure, one_line, writing
from attenuator.tuning.batches import Collator, Rows
from attenuator.tuning.callbacks import Deadline, FirstStep, Interruption, Progress, RegularSaves
from attenuator.tuning.plan import Plan

__all__ = ["Estimate", "Metrics", "Outcome", "Trainer", "run"]

Metrics = Callable[[transformers.EvalPrediction], dict[str, float]]
Ending = Literal["finished", "time", "early", "interrupted"]
ENDS: dict[Ending, str] = {
    "finished": "all that were planned",
    "time": "since the time was over",
    "early": "since nothing was gained any more",
    "interrupted": "then interrupted; the same command with --resume goes on",
}
# Where Trainer keeps the states of all random generators.
RANDOM_STATE = "rng_state.pth"
# Batches that are timed before the run begins, spread over their lengths.
TIMED_BATCHES = 3
# An evaluated token costs about this much of a trained one: a forward pass without the backward one.
EVALUATION_SHARE = 1 / 3
# Of the time that is allowed, what steps are planned for; the rest is loading, saving, and a machine that slows down.
PLANNED_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run is predicted to take.

    Attributes:
        steps: in all.
        steps_asked: for all epochs; more than `steps` where the time allows less.
        steps_done: before this process began.
        seconds: from now to the end.
    """

    steps: int
    steps_asked: int
    steps_done: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: a key of `ENDS`.
        steps: done in all.
        planned: steps of the whole run; 0 where it had not begun.
        seconds: of this process.
        log: what Trainer recorded, in order: losses, metrics, learning rates.
    """

    reason: Ending
    steps: int
    planned: int
    seconds: float
    log: list[dict[str, float]] = field(default_factory=list)

    @property
    def ended(self) -> str:
        """How the run ended, in words."""
        done = f"{self.steps:,} of {self.planned:,} steps" if self.planned else "before the first step"
        return f"{done}, {ENDS[self.reason]}"


class Trainer(transformers.Trainer):  # type: ignore[misc]  # untyped
    """The library's Trainer, with batches of a like number of tokens. `compute_loss` is there to be overridden."""

    plan: Plan

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches in an order that depends on seed and epoch alone."""
        return self._batches(self.train_dataset, self.plan.seed)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of texts by length, longest first."""
        return self._batches(eval_dataset or self.eval_dataset, None)

    def _batches(self, rows: Any, seed: int | None) -> DataLoader[Any]:
        batches = rows.batches(self.plan.batch_tokens, seed)
        loader = DataLoader(rows, batch_sampler=batches, collate_fn=self.data_collator)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared


def arguments_of(
    plan: Plan, steps: int, epoch_steps: int, device: torch.device, *, evaluates: bool
) -> transformers.TrainingArguments:
    """The plan as the library takes it."""
    interval = max(1, min(steps // plan.least_evaluations, epoch_steps // plan.evaluations))
    return transformers.TrainingArguments(
        output_dir=str(plan.steps_folder),
        max_steps=steps,
        learning_rate=plan.learning_rate,
        weight_decay=plan.weight_decay,
        adam_beta2=plan.adam_beta2,
        warmup_steps=round(plan.warmup * steps),
        lr_scheduler_type=plan.schedule,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        load_best_model_at_end=evaluates and plan.better is not None,
        metric_for_best_model=plan.better,
        greater_is_better=True,
        logging_steps=max(1, min(10, steps // 10)),
        logging_nan_inf_filter=False,  # a loss that is no number would be logged as 0
        seed=plan.seed,
        report_to=[],
        disable_tqdm=True,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        label_names=["labels"],
    )


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Within it nothing that training depends on changes: random state, gradients."""
    state, was_training = torch.get_rng_state(), model.training
    try:
        yield
    finally:
        torch.set_rng_state(state)
        model.zero_grad(set_to_none=True)
        model.train(was_training)


def seconds_per_step(trainer: Trainer, rows: Rows, collator: Collator, plan: Plan) -> float:
    """Mean time of a step, from forward and backward passes over a few batches; weights stay what they are."""
    batches = list(rows.batches(plan.batch_tokens))
    chosen = [batches[place] for place in np.linspace(0, len(batches) - 1, TIMED_BATCHES).astype(int)]
    with undisturbed(trainer.model):
        trainer.model.train()
        seconds = []
        for indices in (*chosen, *chosen):  # the first passes pay for what PyTorch sets up and a teacher answers once
            begun = time.perf_counter()
            inputs = trainer._prepare_inputs(collator([rows[index] for index in indices]))
            loss = trainer.compute_loss(trainer.model, inputs)
            loss.backward()
            float(loss.detach())  # which waits for a GPU
            seconds.append(time.perf_counter() - begun)
    return float(np.mean(seconds[TIMED_BATCHES:]))


def estimate(plan: Plan, epoch_steps: int, done: int, step_seconds: float, evaluated_steps: float) -> Estimate:
    """What the run will take, cut to the time that is allowed.

    Args:
        plan: how to train.
        epoch_steps: steps of an epoch.
        done: steps before this process.
        step_seconds: of a step.
        evaluated_steps: batches of an evaluation.
    """
    asked = max(1, round(plan.epochs * epoch_steps))
    evaluations = min(plan.evaluations, epoch_steps)  # there is one a step at most
    per_step = step_seconds * (1 + EVALUATION_SHARE * evaluated_steps * evaluations / epoch_steps)
    steps = plan.max_steps or asked
    if plan.max_steps is None and plan.max_minutes is not None:
        steps = max(1, min(asked, int(PLANNED_SHARE * 60 * plan.max_minutes / per_step)))
    return Estimate(steps, asked, done, per_step * max(0, steps - done))


def last_checkpoint(folder: Path) -> str | None:
    """The last whole checkpoint in a folder; those that a killed process left unfinished are removed."""
    while folder.is_dir() and (last := get_last_checkpoint(str(folder))) is not None:
        try:
            json.loads((Path(last) / TRAINER_STATE_NAME).read_text(encoding="utf-8"))  # what is written last
        except (OSError, ValueError):
            shutil.rmtree(last)
        else:
            return str(last)
    return None


def damaged(checkpoint: str, why: str) -> AttenuatorError:
    """The error of a checkpoint that a run cannot go on from."""
    return AttenuatorError(
        f"'{checkpoint}' cannot be gone on with: {why}; without it, --resume goes on with the one before"
    )


def refuse_incomplete(checkpoint: str | None) -> None:
    """Refuses a checkpoint without what Trainer would go on without: other weights would come out, and nothing be said.

    Raises:
        AttenuatorError: a file is not there.
    """
    for name in (OPTIMIZER_NAME, SCHEDULER_NAME, RANDOM_STATE):
        if checkpoint is not None and not (Path(checkpoint) / name).is_file():
            raise damaged(checkpoint, f"it lacks {name}")


def run(
    model: nn.Module,
    collator: Collator,
    rows: Rows,
    held_out: Rows | None,
    plan: Plan,
    *,
    metrics: Metrics | None = None,
    trainer_class: type[Trainer] = Trainer,
    announce: Callable[[Estimate], None] = lambda _: None,
    shown: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Outcome:
    """Trains a model in place, from the last checkpoint in `plan.steps_folder` where there is one.

    On a CPU with the same number of threads, a run that was interrupted and gone on with ends with the same bits as one
    that was not. Ctrl-C (and SIGTERM) ends it after the step under way, with a checkpoint; a second one at once.

    Args:
        model: a `Trainable`'s.
        collator: makes its batches.
        rows: to train on.
        held_out: to evaluate; None evaluates nothing.
        plan: how to train.
        metrics: logits and labels of the texts held out to figures by name, `plan.better` among them.
        trainer_class: another loss, or other steps.
        announce: called once the time is estimated, before the first step, with the number of steps to keep.
        shown: whether a progress bar goes to stderr.
        options: further arguments of `trainer_class`.

    Raises:
        AttenuatorError: a loss or a weight is not finite, the last checkpoint is damaged, or the disk is full.
        KeyboardInterrupt: Ctrl-C before the first step, or twice.
    """
    begun = time.monotonic()
    transformers.utils.logging.set_verbosity_error()
    epoch_steps = len(rows.batches(plan.batch_tokens))
    device = next(model.parameters()).device
    last = last_checkpoint(plan.steps_folder)
    refuse_incomplete(last)
    done = 0 if last is None else int(Path(last).name.rpartition("-")[2])

    def trainer_of(steps: int) -> Trainer:
        trainer = trainer_class(
            model=model,
            args=arguments_of(plan, steps, epoch_steps, device, evaluates=held_out is not None),
            data_collator=collator,
            train_dataset=rows,
            eval_dataset=held_out,
            compute_metrics=metrics,
            **options or {},
        )
        trainer.plan = plan
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer

    evaluated = 0 if held_out is None else len(held_out.batches(plan.batch_tokens))
    step_seconds = seconds_per_step(trainer_of(1), rows, collator, plan)
    predicted = estimate(plan, epoch_steps, done, step_seconds, evaluated)
    announce(predicted)
    trainer = trainer_of(predicted.steps)
    deadline = Deadline(None if plan.max_minutes is None else begun + 60 * plan.max_minutes)
    reason = train(trainer, last, deadline, shown)
    log = [{name: value for name, value in row.items() if value is not None} for row in trainer.state.log_history]
    refuse_no_number(model, log)
    return Outcome(reason, trainer.state.global_step, predicted.steps, time.monotonic() - begun, log)


def train(trainer: Trainer, checkpoint: str | None, deadline: Deadline, shown: bool) -> Ending:
    """Trains until the end, the deadline, Ctrl-C, or nothing is gained any more; gives which.

    Args:
        trainer: of all steps.
        checkpoint: to go on from.
        deadline: ends it.
        shown: as `run`.

    Raises:
        AttenuatorError: the checkpoint is damaged, or the disk is full.
        KeyboardInterrupt: as `run`.
    """
    plan, interruption, first_step, progress = trainer.plan, Interruption(), FirstStep(), Progress()
    callbacks = [RegularSaves(60 * plan.save_minutes), deadline, interruption, first_step]
    if plan.patience and trainer.eval_dataset is not None:
        callbacks.append(transformers.EarlyStoppingCallback(plan.patience))
    if shown:
        callbacks.append(progress)
    for callback in callbacks:
        trainer.add_callback(callback)
    advice = "--resume goes on from the last whole checkpoint"
    with interruption.listening(), writing(f"'{plan.steps_folder}'", advice):
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except Exception as error:  # damaged files raise what their libraries like
            if disk_failure(error) is not None:
                last_checkpoint(plan.steps_folder)  # removes what is not whole
            elif checkpoint is not None and not first_step.came:
                raise damaged(checkpoint, one_line(error)) from None
            raise
        finally:
            progress.close()
    if trainer.state.global_step >= trainer.args.max_steps:
        return "finished"
    return "interrupted" if interruption.came else "time" if deadline.passed else "early"


def refuse_no_number(model: nn.Module, log: list[dict[str, float]]) -> None:
    """Refuses a run that diverged.

    Raises:
        AttenuatorError: a weight or a recorded loss is not finite.
    """
    losses = [row[name] for row in log for name in ("loss", "eval_loss") if name in row]
    if not all(np.isfinite(losses)) or not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        raise AttenuatorError("training diverged: loss or weights are no finite numbers; lower --learning-rate")
