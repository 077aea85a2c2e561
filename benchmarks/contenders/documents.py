"""Documents that every contender classifies: labelled texts through a checkpoint's tokenizer, or random tokens."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 32


@dataclass(frozen=True)
class Documents:
    """Documents in the order in which they arrive.

    Attributes:
        ids: token ids of each, special tokens included.
        cut: tokens after which each was cut.
        texts: of each; empty where the tokens are random.
        labels: index of each one's label; empty where the tokens are random.
        batch_size: documents that are classified together.
    """

    ids: tuple[list[int], ...]
    cut: int
    texts: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    batch_size: int = BATCH_SIZE

    @property
    def lengths(self) -> Any:
        """Tokens of each, int64 `[documents]`."""
        return np.array([len(row) for row in self.ids])

    def first(self, tokens: int, most: int) -> "Documents":
        """Those from the first on that together have about so many tokens; `most` at most."""
        count = min(most, max(1, int(np.searchsorted(np.cumsum(self.lengths), tokens))))
        return replace(self, ids=self.ids[:count], texts=self.texts[:count], labels=self.labels[:count])

    def batches(self, *, by_length: bool = False) -> list[Any]:
        """Indices of each batch's documents, in the order of arrival or of length."""
        order = np.argsort(self.lengths, kind="stable") if by_length else np.arange(len(self.ids))
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]


def read(path: Path) -> list[dict[str, str]]:
    """Rows `text`, `label` of a file of JSON lines, shuffled: many are sorted by label."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    random.Random(0).shuffle(rows)
    return rows


def tokenised(rows: Sequence[dict[str, str]], tokenizer: Any, cut: int, label_of: dict[str, int]) -> Documents:
    """Documents of labelled texts."""
    texts = tuple(row["text"] for row in rows)
    ids = tokenizer(list(texts), truncation=True, max_length=cut)["input_ids"]
    return Documents(tuple(ids), cut, texts, tuple(label_of[row["label"]] for row in rows))


def drawn(length: int, tokens: int, vocabulary: int) -> Documents:
    """Random tokens: documents of half the length to the whole, about so many tokens together, two documents at least.

    Texts that a length cuts are many of them that long, and the others shorter; with this, padding costs about a
    third.
    """
    source = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < tokens or len(lengths) < 2:
        lengths.append(int(source.integers(length // 2, length + 1)))
    return Documents(tuple(source.integers(5, vocabulary, n).tolist() for n in lengths), length)


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Writes rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
