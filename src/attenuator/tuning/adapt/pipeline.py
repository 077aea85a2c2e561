"""From a checkpoint and a file of texts to a checkpoint with another attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import BigBirdForSequenceClassification

from attenuator import training
from attenuator.bundle import TRAINED_POSITIONS
from attenuator.errors import ExportError
from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Knob
from attenuator.runtime import Encoded
from attenuator.training.samples import AttentionSample
from attenuator.tuning.adapt.distillation import (
    DIVERGENCE,
    Distillation,
    Recipe,
    freeze_embeddings,
    metrics_of,
    without_dropout,
)
from attenuator.tuning.adapt.measuring import BATCH_TOKENS, Figures, accuracy, knob_values, measure
from attenuator.tuning.adapt.recording import make_recordable, packed, recording
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.checkpoints import Trainable, load
from attenuator.tuning.choices import starting
from attenuator.tuning.packed import cu_seqlens_of
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import Estimate, Outcome, run

__all__ = ["Adapted", "Texts", "choose", "load_student", "load_teacher", "refuse_other_attention", "teach"]

FITTED_TOKENS, FITTED_TEXTS = 8192, 32
# Of the texts held out, those that every evaluation runs, by which weights are chosen; the figures are of all.
WATCHED_TEXTS = 400


@dataclass(frozen=True, slots=True)
class Texts:
    """Tokenized texts.

    Attributes:
        learnt: to learn from.
        held_out: to compare answers on.
        targets: right answers of the latter, `[texts]` indices or `[texts, labels]` of 0 and 1; None without labels.
    """

    learnt: Sequence[Encoded]
    held_out: Sequence[Encoded]
    targets: npt.NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class Adapted:
    """What came out.

    Attributes:
        outcome: how the run ended.
        teacher_accuracy: of the softmax model; None without labels.
        before: figures of the student before training, over values of the knob.
        after: the same of the trained one.
    """

    outcome: Outcome
    teacher_accuracy: float | None
    before: list[Figures]
    after: list[Figures]

    def at(self, value: float) -> Figures:
        """The trained model's figures at a value of the knob."""
        return next(figures for figures in self.after if figures.value == value)


def load_teacher(
    source: Path, positions: str = TRAINED_POSITIONS, max_tokens: int | None = None, *, recordable: bool = True
) -> Trainable:
    """The checkpoint as it is, not to be trained.

    Args:
        source: its folder.
        positions: as `checkpoints.load` takes them.
        max_tokens: likewise.
        recordable: whether a student learns the outputs of its attention, and not its answers alone.

    Raises:
        ExportError: it has no trained classifier or has the new attention already, or, where that is to be recorded,
            computes its attention by itself.
    """
    teacher = load(source, positions=positions, max_tokens=max_tokens)
    if teacher.new_weights:
        raise ExportError(
            f"the checkpoint '{source}' has no trained weights for {teacher.new_weights[0]}; it must be a fine-tuned "
            "classifier, since it is its own teacher"
        )
    operator = next(operator for operator in OPERATORS if operator.key == teacher.attention)
    if operator.attention != BASELINE.attention:
        raise ExportError(
            f"the checkpoint '{source}' was trained with {teacher.attention} attention, must have been with "
            f"{BASELINE.attention}: `attenuator train` goes on training it"
        )
    if isinstance(teacher.inner, BigBirdForSequenceClassification):  # which turns to it at the first short text
        teacher.inner.base_model.set_attention_type("original_full")
    if recordable:
        make_recordable(teacher.model, teacher.inner)
    teacher.model.eval().requires_grad_(False)
    return teacher


def load_student(
    source: Path,
    attention: str,
    settings: Any,
    positions: str = TRAINED_POSITIONS,
    max_tokens: int | None = None,
) -> Trainable:
    """A copy of the checkpoint with another attention, to be trained; arguments as `choose` and `load_teacher` say.

    Raises:
        ExportError: the model cannot have it.
    """
    student = load(source, attention, settings=asdict(settings), positions=positions, max_tokens=max_tokens)
    make_recordable(student.model, student.inner)
    without_dropout(student.model)
    freeze_embeddings(student.inner)
    return student


def refuse_other_attention(source: Path, teacher: Trainable, attention: str, changes: dict[str, Any]) -> None:
    """Refuses a model whose attention the new one cannot stand in for.

    Args:
        source: the checkpoint.
        teacher: as `load_teacher` returns it.
        attention: key of the operator.
        changes: settings that are given, by name.

    Raises:
        ExportError: says why.
    """
    model = load(source, attention, settings=changes).model.eval()
    ids = torch.full((1, 2), teacher.collator.pad_id, device=teacher.collator.device)
    try:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    except ValueError as error:
        raise ExportError(f"the checkpoint '{source}' cannot be adapted: {error}") from None


def choose(
    teacher: Trainable, texts: Sequence[Encoded], attention: str, changes: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Settings of an attention that come nearest to the teacher's.

    Args:
        teacher: as `load_teacher` returns it.
        texts: of which the first are looked at.
        attention: key of the operator.
        changes: settings that are given, by name.

    Returns:
        The settings, and the fits of what was tried.

    Raises:
        ExportError: settings that are not allowed, or an attention of the teacher that cannot be replaced.
    """
    fitting = import_module(f"{training.__name__}.{attention}.fitting")
    try:
        start = replace(starting(attention), **changes)
    except ValueError as error:
        raise ExportError(str(error)) from None
    tried = fitting.fits(recorded(teacher, texts), start, set(changes))
    return fitting.nearest(tried), tried


@torch.no_grad()
def recorded(teacher: Trainable, texts: Sequence[Encoded]) -> list[tuple[list[AttentionSample], Tensor]]:
    """Samples of the teacher's attention, with `cu_seqlens`, a text each."""
    batches, tokens = [], 0
    for text in texts[:FITTED_TEXTS]:
        if tokens >= FITTED_TOKENS:
            break
        batch = teacher.collator([Rows([text])[0]])
        with recording() as samples:
            teacher.model(**batch)
        is_token = batch["attention_mask"].bool()
        batches.append((packed(samples, is_token), cu_seqlens_of(is_token)))
        tokens += len(text.token_ids)
    return batches


def knob_of(attention: str) -> Knob:
    """The one knob of an attention."""
    [knob] = next(operator for operator in OPERATORS if operator.key == attention).knobs
    return knob


def watched(held_out: Sequence[Encoded], logits: npt.NDArray[np.float32]) -> Rows:
    """The texts by which training is watched, spread evenly over those held out, with the teacher's logits."""
    places = np.unique(np.linspace(0, len(held_out) - 1, WATCHED_TEXTS).round().astype(int))
    return Rows([held_out[place] for place in places], logits[places])


def left(max_minutes: float | None, spent: float) -> float | None:
    """Minutes that training may take once so many seconds are spent; a tenth of all at least."""
    return None if max_minutes is None else max(max_minutes - spent / 60, max_minutes / 10)


def teach(
    student: Trainable,
    teacher: Trainable,
    settings: Any,
    texts: Texts,
    plan: Plan,
    *,
    exact_share: float,
    attention_weight: float,
    before: list[Figures] | None = None,
    announce: Callable[[Estimate], None] = lambda _: None,
    measured: Callable[[list[Figures]], None] = lambda _: None,
    shown: bool = False,
    begun: float | None = None,
) -> Adapted:
    """Trains a student, and measures it before and after.

    Args:
        student: as `load_student` returns it.
        teacher: as `load_teacher` returns it.
        settings: of the student's attention.
        texts: to learn from, and held out.
        plan: of the run; `better` is set here, and its patience counts as `Recipe` says.
        exact_share: see `Recipe`.
        attention_weight: see `Recipe`.
        before: figures of a run that goes on; None measures them.
        announce: called with what the run is predicted to take.
        measured: called with the figures before training.
        shown: whether a progress bar goes to stderr.
        begun: when the time of `plan.max_minutes` began, on the monotonic clock in seconds; now by default. It includes
            both measurements, the second of which is taken to need as long as the first.

    Raises:
        AttenuatorError: training diverged.
        KeyboardInterrupt: Ctrl-C before the first step, or twice.
    """
    begun = time.monotonic() if begun is None else begun
    knob = knob_of(student.attention)
    value = getattr(settings, knob.name)
    fitting = import_module(f"{training.__name__}.{student.attention}.fitting")
    held_out = Rows(texts.held_out)
    logits = predict(teacher.model, held_out, teacher.collator, BATCH_TOKENS)
    values = knob_values(knob, value)
    measuring_from = time.monotonic()
    if before is None:
        before = measure(student, held_out, logits, texts.targets, knob, values)
    measured(before)
    now = time.monotonic()
    spent = (now - begun) + (now - measuring_from)
    recipe = Recipe(
        knob, value, exact_share, attention_weight, plan.patience, lambda mixed: fitting.comparable(mixed, settings)
    )
    outcome = run(
        student.model,
        student.collator,
        Rows(texts.learnt),
        watched(texts.held_out, logits),
        replace(plan, better=DIVERGENCE, patience=0, max_minutes=left(plan.max_minutes, spent)),
        metrics=metrics_of(student.task),
        trainer_class=Distillation,
        announce=announce,
        shown=shown,
        options={"student": student, "teacher": teacher, "recipe": recipe},
    )
    after = [] if outcome.reason == "interrupted" else measure(student, held_out, logits, texts.targets, knob, values)
    return Adapted(outcome, accuracy(logits, texts.targets, student.task), before, after)
