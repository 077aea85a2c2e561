"""Batches of a like number of tokens, of texts of like length, so that little is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

from attenuator.runtime import Encoded

__all__ = ["Collator", "LengthBatches", "Row", "Rows", "predict"]

# Lengths are multiplied by a draw from 1 to this before texts are sorted, so that epochs group them anew.
LENGTH_NOISE = 1.2


@dataclass(frozen=True, slots=True)
class Row:
    """A tokenized text and its target: an index, a row of `[labels]`, or None."""

    encoded: Encoded
    target: Any = None


class Rows(Dataset[Row]):
    """Tokenized texts with their targets.

    Args:
        encoded: the texts.
        targets: `[texts]` indices or `[texts, labels]` numbers; None where there are none.
    """

    def __init__(self, encoded: Sequence[Encoded], targets: npt.NDArray[Any] | None = None) -> None:
        self.encoded = encoded
        self.targets = targets

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.encoded)

    def __getitem__(self, index: int) -> Row:
        """One text."""
        return Row(self.encoded[index], None if self.targets is None else self.targets[index])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text."""
        return np.array([len(one.token_ids) for one in self.encoded], dtype=np.int64)

    def batches(self, batch_tokens: int, seed: int | None = None) -> LengthBatches:
        """What is run together, in each epoch; arguments as `LengthBatches` takes them."""
        return LengthBatches(self.lengths, batch_tokens, seed)


class LengthBatches(Sampler[list[int]]):
    """Indices of each batch.

    Every epoch has the same number of batches and the same number of texts in the k-th longest of them; which texts
    they are, and the order of the batches, depends on seed and epoch alone.

    Args:
        lengths: tokens of each text.
        batch_tokens: of a batch, padding included; noise in the grouping exceeds it by at most a fifth. A longer text
            is a batch of its own.
        seed: of the grouping and the order; None keeps texts sorted by length, longest first.
    """

    def __init__(self, lengths: npt.NDArray[np.int64], batch_tokens: int, seed: int | None = None) -> None:
        self.lengths = lengths
        self.seed = seed
        self.epoch = 0
        self.sizes: list[int] = []
        longest = 0
        for length in -np.sort(-lengths):
            if self.sizes and (self.sizes[-1] + 1) * longest <= batch_tokens:
                self.sizes[-1] += 1
            else:
                self.sizes.append(1)
                longest = int(length)

    def set_epoch(self, epoch: int) -> None:
        """What `transformers.Trainer` calls before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of the epoch."""
        ends = np.cumsum(self.sizes)[:-1]
        if self.seed is None:
            yield from (part.tolist() for part in np.split(np.argsort(-self.lengths, kind="stable"), ends))
            return
        random = np.random.default_rng([self.seed, self.epoch])
        noisy = self.lengths * random.uniform(1.0, LENGTH_NOISE, len(self.lengths))
        groups = np.split(np.argsort(-noisy, kind="stable"), ends)
        yield from (groups[index].tolist() for index in random.permutation(len(groups)))


@dataclass(frozen=True, slots=True)
class Collator:
    """Rows to the tensors that a model is called with.

    Attributes:
        pad_id: token id of padding.
        has_token_types: whether the model takes token types.
        device: where the model is.
    """

    pad_id: int
    has_token_types: bool
    device: torch.device

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` and, where there are some, `token_type_ids` int64 `[batch, tokens]`; `labels`.

        Labels are int64 `[batch]` for indices and float32 `[batch, labels]` for rows of numbers.
        """
        longest = max(len(row.encoded.token_ids) for row in rows)
        batch = {
            "input_ids": torch.full((len(rows), longest), self.pad_id),
            "attention_mask": torch.zeros(len(rows), longest, dtype=torch.int64),
        }
        if self.has_token_types:
            batch["token_type_ids"] = torch.zeros(len(rows), longest, dtype=torch.int64)
        for index, row in enumerate(rows):
            tokens = len(row.encoded.token_ids)
            batch["input_ids"][index, :tokens] = torch.from_numpy(row.encoded.token_ids)
            batch["attention_mask"][index, :tokens] = 1
            if self.has_token_types:
                batch["token_type_ids"][index, :tokens] = torch.from_numpy(row.encoded.type_ids)
        if rows[0].target is not None:
            batch["labels"] = torch.from_numpy(np.stack([np.asarray(row.target) for row in rows]))
        return {name: tensor.to(self.device) for name, tensor in batch.items()}


@torch.inference_mode()
def predict(
    model: nn.Module, rows: Rows, collator: Collator, batch_tokens: int, *, drawn: bool = False
) -> npt.NDArray[np.float32]:
    """Logits float32 `[texts, labels]`, in the order of the rows.

    Args:
        model: a `Trainable`'s.
        rows: the texts.
        collator: the model's.
        batch_tokens: tokens of a batch, padding included.
        drawn: in training mode, where attention that hashes draws other hashes for each text; in evaluation mode they
            are always the same.
    """
    was_training = model.training
    model.train(drawn)
    order: list[int] = []
    parts: list[npt.NDArray[np.float32]] = []
    for indices in LengthBatches(rows.lengths, batch_tokens):
        batch = collator([Row(rows.encoded[index]) for index in indices])
        order += indices
        parts.append(model(**batch).logits.float().cpu().numpy())
    model.train(was_training)
    logits = np.concatenate(parts)
    return logits[np.argsort(order)]
