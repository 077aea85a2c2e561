"""Distillation of exact answers into a student that selects tokens: each step at the smallest share and one drawn."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attenuator.bundle import Task
from attenuator.runtime.scores import agrees
from attenuator.tuning.adapt.distillation import AGREEMENT, MULTI_LABEL_THRESHOLD, reduced_precision
from attenuator.tuning.adapt.selecting import KEEP, Student, distance
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.run import Trainer

__all__ = ["CLOSENESS", "WATCHED_SHARES", "Evaluations", "Teaching", "metrics_of"]

CLOSENESS = "minus_distance"
# At which every evaluation looks.
WATCHED_SHARES = (KEEP.low, 0.1, 0.2, 0.4)
# What is drawn from, evenly in its logarithm. Rows above it may run in the original weights.
LOW, HIGH = KEEP.low, 0.5


def metrics_of(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """Agreement at each of `WATCHED_SHARES` and their mean, and the negative mean squared distance of logits.

    Predictions are `[texts, shares * labels]`; the teacher's logits `[texts, labels]` stand where labels do.
    """

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        theirs: npt.NDArray[np.float32] = np.asarray(prediction.label_ids, dtype=np.float32)
        ours = np.asarray(prediction.predictions, dtype=np.float32).reshape(len(theirs), -1, theirs.shape[1])
        thresholds = [MULTI_LABEL_THRESHOLD] * theirs.shape[1]
        same = [
            float(agrees(ours[:, at], theirs, task=task, thresholds=thresholds).mean()) for at in range(ours.shape[1])
        ]
        named = {f"{AGREEMENT}_{share:g}": each for share, each in zip(WATCHED_SHARES, same, strict=True)}
        away = float(np.square(ours - theirs[:, None]).mean())
        return {**named, AGREEMENT: float(np.mean(same)), CLOSENESS: -away}

    return metrics


class Evaluations(TrainerCallback):  # type: ignore[misc]  # untyped
    """Says agreement at each share as training goes on."""

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        """One line, above the bar."""
        begin = f"eval_{AGREEMENT}_"
        shown = [f"{value:.3f} at {name.removeprefix(begin)}" for name, value in metrics.items() if begin in name]
        tqdm.write(f"step {state.global_step}: held-out agreement {', '.join(shown)}", file=sys.stderr)


class Teaching(Trainer):
    """Trains a student on its teacher's logits; labels are not looked at.

    Args:
        student: what is trained.
        teacher: the checkpoint as it was.
        known: its logits by the tokens of a text; filled as texts are met.
        shown: whether each evaluation is said on stderr.
    """

    def __init__(
        self, *, student: Student, teacher: Trainable, known: dict[bytes, Tensor], shown: bool, **further: Any
    ) -> None:
        super().__init__(**further)
        self.student, self.teacher, self.known = student, teacher, known
        self.reduced = reduced_precision()
        if shown:
            self.add_callback(Evaluations())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Writes the weights that the checkpoint has, without those that its graph shares with them or repeats."""
        state = self.model.state_dict()
        super()._save(output_dir, {name: state[name] for name in self.teacher.model.state_dict()})

    def shares(self) -> tuple[float, float]:
        """Of the step under way: the smallest, and one that seed and step draw."""
        draw = np.random.default_rng([self.args.seed, self.state.global_step])
        return LOW, math.exp(draw.uniform(math.log(LOW), math.log(HIGH)))

    def target(self, batch: dict[str, Tensor]) -> Tensor:
        """The teacher's logits in fp32, computed once for each text.

        Each is computed alone: its bits then hang on no batch, and a run that goes on learns what it would have.
        """
        keys = []
        for at, count in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
            alone = {name: rows[at : at + 1, :count] for name, rows in batch.items()}
            keys.append(alone["input_ids"].cpu().numpy().tobytes())
            if keys[-1] not in self.known:
                with torch.no_grad():
                    self.known[keys[-1]] = self.teacher.model(**alone).logits[0].float()
        return torch.stack([self.known[key] for key in keys])

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The student's loss on a batch."""
        batch = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        target = self.target(batch)
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.reduced):
            answers = [self.student.logits(batch, share) for share in self.shares()]
        loss = torch.stack([distance(each, target) for each in answers]).sum()
        return (loss, answers[0]) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[None, Tensor, Tensor]:
        """Logits at `WATCHED_SHARES`, side by side, beside the teacher's."""
        inputs = self._prepare_inputs(inputs)
        batch = {name: tensor for name, tensor in inputs.items() if name != "labels"}
        with torch.no_grad():
            answers = [self.student.logits(batch, share).float() for share in WATCHED_SHARES]
        return None, torch.cat(answers, dim=1), inputs["labels"]
