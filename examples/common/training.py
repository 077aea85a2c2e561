"""The training loop of the bundled models: packed batches of random crops, averaged weights, noise from hashing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from attenuator.export.encoder import Encoder

Ids = NDArray[np.int64]
UNKNOWN_ID = 1


@dataclass(frozen=True)
class Recipe:
    """How to train; lengths in tokens."""

    epochs: int = 8
    # Epochs over which the learning rate falls to 0, where that is longer than `epochs`: a later phase goes on.
    schedule_epochs: int = 0
    tokens_per_batch: int = 8192
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    word_dropout: float = 0.1
    # Each document is cut to one of these lengths, drawn anew in each epoch, at a random offset.
    crop_lengths: tuple[int, ...] = (256,)
    # A document may be several crops, of that many tokens together, whose pooled vectors are averaged: mean pooling
    # is linear in the tokens. At least one crop.
    tokens_per_document: int = 0
    # From this share of the schedule's steps on, every second step hashes, with one of `hashes`.
    sampled_from: float = 1.0
    hashes: tuple[int, ...] = (8, 16, 32)
    average_decay: float = 0.998
    # Products of matrices in bfloat16: half the time where the processor multiplies it.
    reduced_precision: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Crops end to end; `document` tells which row of `targets` a crop belongs to."""

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    document: Tensor
    targets: Tensor


def pack(crops: list[tuple[Ids, int, int]], targets: NDArray[np.float32]) -> Batch:
    """Pack crops (token ids `[tokens]`, offset in the document, document) with targets `[documents, labels]`."""
    return Batch(
        torch.from_numpy(np.concatenate([ids for ids, _, _ in crops])),
        torch.from_numpy(np.concatenate([np.arange(start, start + len(ids)) for ids, start, _ in crops])),
        torch.tensor(np.cumsum([0, *(len(ids) for ids, _, _ in crops)]), dtype=torch.int32),
        torch.tensor([document for _, _, document in crops]),
        torch.from_numpy(targets),
    )


def draw_crops(ids: Ids, recipe: Recipe, random: np.random.Generator) -> list[tuple[Ids, int]]:
    """Disjoint crops of one document, (token ids `[tokens]`, offset) each, of one random length."""
    length = int(random.choice(recipe.crop_lengths))
    if len(ids) <= length:
        return [(ids, 0)]
    count = max(1, recipe.tokens_per_document // length)
    if count == 1:
        starts = random.integers(0, len(ids) - length + 1, size=1)
    else:
        starts = random.permutation(np.arange(int(random.integers(0, length)) - length, len(ids), length))[:count]
    crops = [(ids[max(0, start) : start + length], max(0, int(start))) for start in starts]
    return [crop for crop in crops if len(crop[0])]


def batches(
    documents: list[Ids], targets: NDArray[np.float32], recipe: Recipe, random: np.random.Generator
) -> Iterator[Batch]:
    """One epoch of random crops, documents of like length together, batches in random order."""
    drawn = [draw_crops(ids, recipe, random) for ids in documents]
    sizes = np.array([sum(len(crop) for crop, _ in crops) for crops in drawn])
    # Some noise in the lengths makes each epoch group the documents anew.
    order = np.argsort(sizes * random.uniform(0.8, 1.25, len(sizes)))
    groups: list[list[int]] = [[]]
    filled = 0
    for index in order:
        if groups[-1] and filled + sizes[index] > recipe.tokens_per_batch:
            groups.append([])
            filled = 0
        groups[-1].append(int(index))
        filled += int(sizes[index])
    for group in random.permutation(len(groups)):
        members = groups[group]
        crops = [(crop, start, row) for row, index in enumerate(members) for crop, start in drawn[index]]
        yield pack(crops, targets[members])


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
    """
    random = np.random.default_rng(recipe.seed)
    average = copy.deepcopy(model).eval()
    model.compute_through_operator()
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    epoch_steps = sum(1 for _ in batches(documents, targets, recipe, np.random.default_rng(recipe.seed)))
    steps = max(recipe.epochs, recipe.schedule_epochs) * epoch_steps

    def rate(step: int) -> float:
        warmup = recipe.warmup * steps
        return min((step + 1) / (warmup + 1), 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    best, step = -math.inf, 0
    for epoch in range(recipe.epochs):
        model.train()
        losses: list[float] = []
        drawn = batches(documents, targets, recipe, random)
        progress = tqdm(drawn, desc=f"epoch {epoch + 1}", total=epoch_steps, mininterval=2.0)
        for batch in progress:
            hashed = step >= recipe.sampled_from * steps and step % 2 == 1
            model.set_knobs({"num_hashes": int(random.choice(recipe.hashes))} if hashed else {})
            dropped = torch.rand(batch.input_ids.shape) < recipe.word_dropout
            batch = Batch(batch.input_ids.masked_fill(dropped, UNKNOWN_ID), *_rest(batch))
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.reduced_precision):
                logits = document_logits(model, batch).float()
            loss = loss_of(model, logits, batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            step += 1
            decay = min(recipe.average_decay, step / (step + 10))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
            losses.append(loss.item())
            if step % 50 == 0:
                progress.set_postfix(loss=f"{np.mean(losses[-200:]):.4f}")
        figure = validate(average)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, held-out {figure:.4f}", flush=True)
        if figure > best:
            best = figure
            average.save_pretrained(folder)
    model.set_knobs({})
    return best


def _rest(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.position_ids, batch.cu_seqlens, batch.document, batch.targets


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
