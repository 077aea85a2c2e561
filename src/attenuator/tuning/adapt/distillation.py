"""Distillation of a teacher's attention outputs and answers into a student: exact first, then with the knob's noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attenuator.bundle import Task
from attenuator.export.encoder import Encoder
from attenuator.ops import DOMAIN
from attenuator.ops.spec import Knob
from attenuator.runtime.scores import agrees
from attenuator.training.samples import AttentionSample, scale
from attenuator.tuning.adapt.recording import packed, recording
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.run import Trainer

__all__ = ["AGREEMENT", "DIVERGENCE", "Distillation", "Recipe", "at_knob", "divergence", "metrics_of"]

AGREEMENT, DIVERGENCE = "agreement", "minus_divergence"
# A probability of a label that the multi-label service counts as given.
MULTI_LABEL_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the student learns, and when.

    Attributes:
        knob: of the new attention.
        value: of the knob, that which the checkpoint is to be served with.
        exact_share: of the steps, those at the knob's exact value, at the beginning: what is learnt first has no
            noise. The others run at `value`, so that the weights learn to live with it.
        attention_weight: of the attention outputs' relative squared error beside the divergence of the answers.
        patience: evaluations without a gain, once the knob is at `value`, after which training ends; 0 for none.
        comparable: the teacher's attention outputs as the student's attention can give them.
    """

    knob: Knob
    value: int | float
    exact_share: float
    attention_weight: float
    patience: int
    comparable: Callable[[Tensor], Tensor]


@contextmanager
def at_knob(trainable: Trainable, knob: Knob, value: int | float) -> Iterator[None]:
    """Within it the model computes attention at this value of its knob."""
    before = _set_knob(trainable.inner, knob.name, value)
    try:
        yield
    finally:
        _set_knob(trainable.inner, knob.name, before)


def _set_knob(inner: Any, name: str, value: Any) -> Any:
    """Sets a knob; returns what it was."""
    if isinstance(inner, Encoder):
        before = inner.config.knobs[name]
        inner.config.knobs[name] = value
        inner.set_knobs(inner.config.knobs)
        return before
    stored = getattr(inner.config, DOMAIN)
    before = stored[name]
    stored[name] = value
    return before


def divergence(student: Tensor, teacher: Tensor, task: Task) -> Tensor:
    """How far answers are from the teacher's, mean over texts.

    Args:
        student: logits `[texts, labels]`.
        teacher: of the same shape.
        task: what the logits mean: Kullback-Leibler divergence of the labels' probabilities, summed over labels where
            a text may have several; squared distance in a regression.
    """
    if task == "regression":
        return (student - teacher).square().mean()
    if task == "single_label":
        logs = student.log_softmax(dim=1), teacher.log_softmax(dim=1)
    else:
        logs = (
            torch.stack([functional.logsigmoid(student), functional.logsigmoid(-student)]),
            torch.stack([functional.logsigmoid(teacher), functional.logsigmoid(-teacher)]),
        )
    return functional.kl_div(*logs, log_target=True, reduction="sum") / len(student)


def attention_error(
    student: list[AttentionSample], teacher: list[AttentionSample], comparable: Callable[[Tensor], Tensor]
) -> Tensor:
    """Squared distance of attention outputs over their variance, mean over layers."""
    errors = []
    for ours, theirs in zip(student, teacher, strict=True):
        target = comparable(theirs.mixed.float())
        errors.append((ours.mixed.float() - target).square().sum() / scale(target))
    return torch.stack(errors).mean()


def metrics_of(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """Agreement with the teacher, whose logits stand where labels do, and the negative divergence."""

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        ours: npt.NDArray[np.float32] = np.asarray(prediction.predictions, dtype=np.float32)
        theirs: npt.NDArray[np.float32] = np.asarray(prediction.label_ids, dtype=np.float32)
        same = agrees(ours, theirs, task=task, thresholds=[MULTI_LABEL_THRESHOLD] * ours.shape[1])
        away = divergence(torch.from_numpy(ours), torch.from_numpy(theirs), task)
        return {AGREEMENT: float(same.mean()), DIVERGENCE: -float(away)}

    return metrics


def reduced_precision() -> bool:
    """Whether this machine multiplies bfloat16 faster than float32."""
    supported: bool = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported()
    return supported


class Patience(TrainerCallback):  # type: ignore[misc]  # untyped
    """Ends training once evaluations show no gain any more, counted from when the knob has its value.

    Args:
        evaluations: without a gain; at least 1.
        exact_share: of the steps, those before the count begins.
    """

    def __init__(self, evaluations: int, exact_share: float) -> None:
        self.evaluations = evaluations
        self.exact_share = exact_share

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Looks at all evaluations so far, which a run that goes on has as well."""
        begins = self.exact_share * state.max_steps
        name = f"eval_{DIVERGENCE}"
        values = [row[name] for row in state.log_history if name in row and row["step"] > begins]
        if values and len(values) - 1 - int(np.argmax(values)) >= self.evaluations:
            control.should_training_stop = True


class Distillation(Trainer):
    """Trains a student on its teacher's attention outputs and answers; labels are not looked at."""

    def __init__(self, *, student: Trainable, teacher: Trainable, recipe: Recipe, **further: Any) -> None:
        super().__init__(**further)
        self.student, self.teacher, self.recipe = student, teacher, recipe
        self.reduced = reduced_precision()
        if recipe.patience:
            self.add_callback(Patience(recipe.patience, recipe.exact_share))

    def value(self) -> int | float:
        """Of the knob, in the step under way; before the run begins, while steps are timed, the dearer one."""
        recipe = self.recipe
        is_exact = self.state.global_step < recipe.exact_share * self.state.max_steps
        return recipe.knob.exact if is_exact else recipe.value

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The student's loss on a batch."""
        batch = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        is_token = batch["attention_mask"].bool()
        device = is_token.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.reduced):
            with torch.no_grad(), recording() as theirs:
                target = self.teacher.model(**batch).logits.float()
            with recording() as ours, at_knob(self.student, self.recipe.knob, self.value()):
                outputs = model(**batch)
        away = divergence(outputs.logits.float(), target, self.student.task)
        error = attention_error(packed(ours, is_token), packed(theirs, is_token), self.recipe.comparable)
        loss = away + self.recipe.attention_weight * error
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[None, Tensor, Tensor]:
        """Logits at the knob's value, beside the teacher's."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.reduced):
            logits = model(**{name: tensor for name, tensor in inputs.items() if name != "labels"}).logits
        return None, logits.float(), inputs["labels"]


def without_dropout(model: nn.Module) -> None:
    """Turns dropout off: the noise to be learnt is that of the attention."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def freeze_embeddings(inner: Any) -> None:
    """Leaves the token table as it is: it means what it should, and costs most to update."""
    table = inner.embeddings if isinstance(inner, Encoder) else inner.get_input_embeddings()
    table.weight.requires_grad_(False)
