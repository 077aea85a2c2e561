"""How the bundled models train: packed batches of random crops, averaged weights, noise from hashing.

The loop is that of `attenuator train` (`attenuator.tuning.run`), which is transformers' Trainer.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput

from attenuator.export.encoder import Encoder
from attenuator.tuning.batches import Rows
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import Estimate, Trainer, run
from common.crops import Batch, Crops, Ids, collate, pack
from common.recipe import Recipe

UNKNOWN_ID = 1
# Of the highest learning rate, what it falls to.
LOWEST_RATE = 0.02


def document_logits(model: Encoder, batch: Batch) -> Tensor:
    """Logits `[documents, labels]` from the token-weighted mean of each document's pooled crops."""
    pooled = model.encode(batch.input_ids, batch.position_ids, batch.cu_seqlens)
    if len(pooled) > len(batch.targets):
        lengths = torch.diff(batch.cu_seqlens).to(pooled.dtype)[:, None]
        zeros = pooled.new_zeros(len(batch.targets), pooled.shape[1])
        total = zeros.index_add(0, batch.document, pooled * lengths)
        pooled = total / zeros[:, :1].index_add(0, batch.document, lengths)
    logits: Tensor = model.classifier(model.dropout(pooled))
    return logits


def loss_of(model: Encoder, logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy against probabilities `[documents, labels]`."""
    if model.config.problem_type == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, targets)
    return functional.cross_entropy(logits, targets)


class DocumentClassifier(nn.Module):
    """An encoder as the Trainer calls it, on packed crops.

    Args:
        encoder: what is trained, in place.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, document: Tensor, labels: Tensor
    ) -> SequenceClassifierOutput:
        """Logits `[documents, labels]` and the mean loss; arguments as the fields of `Batch`."""
        batch = Batch(input_ids, position_ids, cu_seqlens, document, labels)
        logits = document_logits(self.encoder, batch).float()
        return SequenceClassifierOutput(loss=loss_of(self.encoder, logits, labels), logits=logits)


class Averaging(TrainerCallback):  # type: ignore[misc]  # untyped
    """Keeps a running average of the weights.

    Args:
        average: changed after every step.
        model: what is trained.
        decay: share of the average that a step leaves.
    """

    def __init__(self, average: Encoder, model: Encoder, decay: float) -> None:
        self.average, self.model, self.decay = average, model, decay

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step further; the first ones count more."""
        decay = min(self.decay, state.global_step / (state.global_step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)


class RecipeTrainer(Trainer):
    """The Trainer of `attenuator train`, by a recipe: noise, schedule, averaged weights of the best epoch.

    Args:
        recipe: how to train.
        average: the averaged weights, which are evaluated and saved.
        validate: a figure on held-out data, larger is better.
        folder: checkpoint folder, written whenever the figure rises.
        further: the library's.
    """

    def __init__(
        self, *, recipe: Recipe, average: Encoder, validate: Callable[[Encoder], float], folder: Path, **further: Any
    ) -> None:
        super().__init__(**further)
        self.recipe, self.average, self.validate, self.folder = recipe, average, validate, folder
        self.best = -math.inf
        self.schedule_steps = max(1, self.state.max_steps)
        self.add_callback(Averaging(average, self.model.encoder, recipe.average_decay))

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rate rises, then falls by a cosine over the schedule's epochs, of which there may be more."""
        recipe = self.recipe
        steps = round(num_training_steps * max(recipe.epochs, recipe.schedule_epochs) / recipe.epochs)
        warmup = recipe.warmup * steps
        self.schedule_steps = steps

        def rate(step: int) -> float:
            falling = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
            return min((step + 1) / (warmup + 1), LOWEST_RATE + (1 - LOWEST_RATE) * falling)

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, rate)
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any) -> Any:
        """The loss with some words left out and, in every second step of the last part, hashed."""
        recipe, step, encoder = self.recipe, self.state.global_step, self.model.encoder
        hashed = step >= recipe.sampled_from * self.schedule_steps and step % 2 == 1
        hashes = int(np.random.default_rng([recipe.seed, step]).choice(recipe.hashes))
        encoder.set_knobs({"num_hashes": hashes} if hashed else {})
        dropped = torch.rand(inputs["input_ids"].shape) < recipe.word_dropout
        inputs = inputs | {"input_ids": inputs["input_ids"].masked_fill(dropped, UNKNOWN_ID)}
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.reduced_precision):
            outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The figure of the averaged weights, which are saved where none was better."""
        figure = self.validate(self.average)
        if figure > self.best:
            self.best = figure
            self.average.save_pretrained(self.folder)
        print(f"step {self.state.global_step}: held-out {figure:.4f}", flush=True)
        metrics = {"eval_figure": figure}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def train(
    model: Encoder,
    documents: list[Ids],
    targets: NDArray[np.float32],
    recipe: Recipe,
    validate: Callable[[Encoder], float],
    folder: Path,
) -> float:
    """Train in place and save the averaged weights of the best epoch.

    Args:
        model: a fresh or a trained encoder.
        documents: token ids `[tokens]` of each document.
        targets: probabilities `[documents, labels]`.
        recipe: how to train.
        validate: a figure on held-out data, larger is better.
        folder: checkpoint folder, written whenever `validate` rises.

    Returns:
        The best figure.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    best = -math.inf

    def validated(candidate: Encoder) -> float:
        nonlocal best
        figure = validate(candidate)
        best = max(best, figure)
        return figure

    average = copy.deepcopy(model).eval()
    model.compute_through_operator()
    steps = folder / "steps"
    shutil.rmtree(steps, ignore_errors=True)
    outcome = run(
        DocumentClassifier(model.train()),
        collate,  # type: ignore[arg-type]  # of crops
        Crops(documents, targets, recipe),
        Rows([]),
        Plan(
            steps,
            epochs=recipe.epochs,
            learning_rate=recipe.learning_rate,
            batch_tokens=recipe.tokens_per_batch,
            seed=recipe.seed,
            weight_decay=recipe.weight_decay,
            adam_beta2=0.98,
        ),
        trainer_class=RecipeTrainer,
        announce=announce,
        shown=True,
        options={"recipe": recipe, "average": average, "validate": validated, "folder": folder},
    )
    if outcome.reason == "interrupted":
        raise KeyboardInterrupt
    shutil.rmtree(steps, ignore_errors=True)
    model.set_knobs({})
    return best


def announce(estimate: Estimate) -> None:
    """Says how long training will take."""
    print(f"{estimate.steps:,} steps, about {estimate.seconds / 60:.0f} minutes", flush=True)


@torch.no_grad()
def predict(model: Encoder, documents: list[Ids], tokens_per_batch: int = 16384) -> NDArray[np.float32]:
    """Logits `[documents, labels]` of whole documents in evaluation mode, in the order given."""
    order = sorted(range(len(documents)), key=lambda index: len(documents[index]))
    logits = np.zeros((len(documents), model.config.num_labels), dtype=np.float32)
    start = 0
    while start < len(order):
        stop, total = start, 0
        while stop < len(order) and (stop == start or total + len(documents[order[stop]]) <= tokens_per_batch):
            total += len(documents[order[stop]])
            stop += 1
        members = order[start:stop]
        batch = pack([(documents[index], 0, row) for row, index in enumerate(members)], np.zeros((1, 1), np.float32))
        logits[members] = model(batch.input_ids, batch.position_ids, batch.cu_seqlens).numpy()
        start = stop
    return logits
