"""A student that selects tokens as its exported graph does, and how far its answers are from its teacher's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of
from attenuator.export.checkpoint import read_model_type
from attenuator.export.choose import distinct
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.selection import DROPPED, LENGTHS, exponents
from attenuator.export.selection_checks import check_selection, why_not
from attenuator.export.trace import PackedClassifier
from attenuator.ops import BASELINE
from attenuator.ops.kept_lengths.rule import MEAN, kept_length
from attenuator.training.differentiable import FORMS, form
from attenuator.tuning.adapt.distillation import freeze_embeddings, without_dropout
from attenuator.tuning.batches import Row, Rows
from attenuator.tuning.checkpoints import Trainable, load
from attenuator.tuning.packed import cu_seqlens_of

__all__ = ["KEEP", "Student", "candidates", "load_keep_student", "work"]

[KEEP] = LENGTHS.knobs
# What a row costs a layer: the projections of queries, keys and values before it is left out; output and feed-forward
# behind, at the usual width. Attention itself is small beside them in texts of hundreds of tokens.
BEFORE, BEHIND = 3, 9


class Student:
    """A checkpoint whose layers select tokens, with gradients.

    What it computes is what `attenuator export` traces, with the operators in differentiable form. Weights that export
    makes constants of stay as they are: tables of distances and positions with the projections that made them, and what
    the graph has as copies, the first DeBERTa's projections and a convolution.

    Args:
        trainable: the checkpoint; its weights are taught in place.
        schedule: how the selection spreads over the layers, a key of `selection.SCHEDULES`.

    Raises:
        ExportError: it has no `keep`.
    """

    def __init__(self, trainable: Trainable, schedule: str) -> None:
        self.trainable = trainable
        inner = trainable.inner
        architecture = architecture_of(read_model_type(trainable.source))
        keys = [key for key in architecture.operators(inner.config) if key in FORMS]
        named = {OPERATOR_BY_KEY[key].asked_as or key: key for key in keys}
        if BASELINE.key not in named:
            raise self._without_keep("its attention does not say what each row matters")
        has_types = trainable.collator.has_token_types
        operator = named[BASELINE.key]
        with self.device:  # what the graph's preparation makes is made there
            self.classifier = PackedClassifier(architecture, inner, operator, {}, has_types, schedule, MEAN)
        self.classifier.form = form
        self.merge = MEAN
        try:
            self._check(schedule)
        except ExportError:  # not where the first token is apart from windows, or a convolution beside attention
            self.classifier.merge = self.merge = DROPPED
            self.classifier.choose(schedule)
            self._check(schedule)
        for block in architecture.blocks(inner):
            attention: Any = getattr(block.attention, "self", None) if hasattr(block, "tables") else None
            if getattr(attention, "share_att_key", False):
                tables = dict(block.tables.named_buffers())
                attention.key_proj.requires_grad_("pos_key" not in tables)
                attention.query_proj.requires_grad_("pos_query" not in tables)

    def _check(self, schedule: str) -> None:
        """Refuses a model that selects nothing, or cannot merge what it leaves out."""
        if not self.classifier.selection.layers and len(candidates(self)) == 1:  # with every schedule
            raise self._without_keep(why_not(self.classifier))
        with torch.no_grad(), self.device:
            check_selection(self.classifier, schedule)

    def _without_keep(self, reason: str) -> ExportError:
        """The error of a checkpoint that has no selection."""
        return ExportError(f"the checkpoint '{self.trainable.source}' has no {KEEP.name} to teach: {reason}")

    @property
    def device(self) -> torch.device:
        """Where the checkpoint is."""
        return self.trainable.collator.device

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.classifier.num_layers

    def logits(self, batch: dict[str, Tensor], keep: float) -> Tensor:
        """Logits float32 `[batch, labels]`.

        Args:
            batch: as `Collator` makes it.
            keep: the knob, the same for every text.
        """
        is_token = batch["attention_mask"].bool()
        offset = self.classifier.architecture.position_offset(self.classifier.model.config)
        with self.device:  # layers make tensors too
            along = torch.arange(offset, offset + is_token.shape[1])
            values = {
                "input_ids": batch["input_ids"][is_token],
                "position_ids": along.expand_as(is_token)[is_token],
                "cu_seqlens": cu_seqlens_of(is_token),
                KEEP.name: torch.full((len(is_token),), keep),
            }
            if "token_type_ids" in batch:
                values["token_type_ids"] = batch["token_type_ids"][is_token]
            logits: Tensor = self.classifier(*(values[name] for name in self.classifier.inputs))
        return logits

    @torch.no_grad()
    def predict(self, rows: Rows, keep: float, batch_tokens: int) -> npt.NDArray[np.float32]:
        """Logits float32 `[texts, labels]`, in the order of the rows."""
        order, parts = [], []
        for indices in rows.batches(batch_tokens):
            batch = self.trainable.collator([Row(rows.encoded[index]) for index in indices])
            order += indices
            parts.append(self.logits(batch, keep).float().cpu().numpy())
        return np.concatenate(parts)[np.argsort(order)]

    def changed(self, teacher: Trainable) -> dict[str, Tensor]:
        """The weights that teaching changed, by name; `teacher` is the checkpoint as it was."""
        own, before = self.trainable.inner.state_dict(), teacher.inner.state_dict()
        return {name: own[name].contiguous() for name in before if not torch.equal(own[name], before[name])}


def load_keep_student(source: Path, schedule: str) -> Student:
    """A copy of a checkpoint to be taught, its token table left as it is.

    Raises:
        ExportError: it has no `keep`.
    """
    student = Student(load(source, BASELINE.key), schedule)
    without_dropout(student.trainable.model)
    freeze_embeddings(student.trainable.inner)
    return student


def distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared distance of logits, mean over texts and labels: it teaches more in a step than the divergence."""
    return functional.mse_loss(student.float(), teacher)


def candidates(student: Student) -> list[str]:
    """Schedules to try that differ in this model: all at once, behind the first layer or later, or little by little."""
    different = distinct(student.layers, student.classifier.pooling)
    return [name for name in ("first", "second", "middle", "rising") if name in different]


def work(student: Student, schedule: str, keep: float, lengths: Sequence[int]) -> float:
    """What texts of these lengths cost the layers, as a share of what they cost at `keep` 1."""
    steps = exponents(schedule, student.layers, student.classifier.pooling)
    # Where the first token classifies, the last layer computes that row alone.
    full = student.layers - (student.classifier.pooling == "first")
    total = spent = 0.0
    for length in lengths:
        rows = length
        for exponent in steps[:full]:
            behind = kept_length(rows, keep, exponent, student.merge) if exponent else rows
            total += (BEFORE + BEHIND) * length
            spent += BEFORE * rows + BEHIND * behind
            rows = behind
        if full < student.layers:
            total += (BEFORE - 1) * length
            spent += (BEFORE - 1) * rows
    return spent / total
