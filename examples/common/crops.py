"""Random crops of documents, packed into batches, for the Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from attenuator.tuning.batches import Rows
from common.recipe import Recipe

Ids = NDArray[np.int64]
# A document of a batch: its index, and (offset, tokens) of each of its crops.
Drawn = tuple[int, list[tuple[int, int]]]


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


class Crops(Rows):
    """Documents of which every epoch draws other crops.

    Args:
        documents: token ids `[tokens]` of each.
        targets: probabilities `[documents, labels]`.
        recipe: how to crop.
    """

    def __init__(self, documents: list[Ids], targets: NDArray[np.float32], recipe: Recipe) -> None:
        super().__init__([], targets)
        self.documents, self.recipe = documents, recipe

    def __len__(self) -> int:
        """How many documents there are."""
        return len(self.documents)

    def __getitem__(self, drawn: Any) -> Any:
        """Crops (token ids `[tokens]`, offset) of a document, a `Drawn`, and its target `[labels]`."""
        index, crops = drawn
        return [(self.documents[index][start : start + length], start) for start, length in crops], self.targets[index]

    def batches(self, batch_tokens: int, seed: int | None = None) -> Any:
        """Batches of one epoch after another."""
        return CropBatches(self, batch_tokens, seed or 0)


class CropBatches(Sampler[list[Drawn]]):
    """Random crops, documents of like length together, batches in random order, as many in each epoch.

    Args:
        crops: of which documents.
        batch_tokens: of a batch, about.
        seed: of what is drawn.
    """

    def __init__(self, crops: Crops, batch_tokens: int, seed: int) -> None:
        self.crops, self.seed, self.epoch = crops, seed, 0
        _, sizes = self.drawn(np.random.default_rng([seed, 0]))
        self.count = max(1, round(sizes.sum() / batch_tokens))

    def drawn(self, random: np.random.Generator) -> tuple[list[Drawn], NDArray[np.int64]]:
        """Crops of every document, and how many tokens these are."""
        documents, recipe = self.crops.documents, self.crops.recipe
        drawn = [
            (index, [(start, len(crop)) for crop, start in draw_crops(ids, recipe, random)])
            for index, ids in enumerate(documents)
        ]
        return drawn, np.array([sum(length for _, length in crops) for _, crops in drawn], dtype=np.int64)

    def set_epoch(self, epoch: int) -> None:
        """What `transformers.Trainer` calls before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.count

    def __iter__(self) -> Iterator[list[Drawn]]:
        """The batches of the epoch."""
        random = np.random.default_rng([self.seed, self.epoch])
        drawn, sizes = self.drawn(random)
        # Some noise in the lengths makes each epoch group the documents anew.
        order = np.argsort(sizes * random.uniform(0.8, 1.25, len(sizes)))
        filled = np.cumsum(sizes[order])
        groups = np.split(order, np.searchsorted(filled, filled[-1] * np.arange(1, self.count) / self.count))
        for group in random.permutation(len(groups)):
            if len(groups[group]):
                yield [drawn[index] for index in groups[group]]


def collate(rows: Sequence[tuple[list[tuple[Ids, int]], NDArray[np.float32]]]) -> dict[str, Tensor]:
    """Documents with their targets to what `DocumentClassifier` takes."""
    crops = [(ids, start, row) for row, (parts, _) in enumerate(rows) for ids, start in parts]
    batch = pack(crops, np.stack([target for _, target in rows]))
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "cu_seqlens": batch.cu_seqlens,
        "document": batch.document,
        "labels": batch.targets,
    }
