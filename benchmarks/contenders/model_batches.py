"""What whole models read: batches of token ids, packed for this project's graphs and padded for the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np

VOCABULARY = 4096


@dataclass(frozen=True)
class Batch:
    """Sequences of random tokens.

    Attributes:
        lengths: tokens of each.
    """

    lengths: tuple[int, ...]

    @property
    def ids(self) -> Any:
        """int64 `[T]`."""
        return np.random.default_rng(0).integers(0, VOCABULARY, sum(self.lengths))

    def packed(self, **knobs: float) -> dict[str, Any]:
        """Graph inputs of the packed batch.

        Args:
            knobs: `num_hashes` or `alpha`, one value for all sequences.
        """
        count = len(self.lengths)
        feeds: dict[str, Any] = {
            "input_ids": self.ids,
            "position_ids": np.concatenate([np.arange(n) for n in self.lengths]),
            "cu_seqlens": np.cumsum([0, *self.lengths]).astype(np.int32),
            "seed": np.zeros(count, np.int64),
        }
        for name, value in knobs.items():
            feeds[name] = np.full(count, value, np.int32 if name == "num_hashes" else np.float32)
        return feeds

    def padded(self, hidden: int) -> dict[str, Any]:
        """Graph inputs of the padded batch; see `graphs.padded_graph`.

        Args:
            hidden: channels of the model.
        """
        count, longest = len(self.lengths), max(self.lengths)
        is_token = np.arange(longest)[None, :] < np.asarray(self.lengths)[:, None]
        ids = np.zeros((count, longest), np.int64)
        ids[is_token] = self.ids
        starts = np.arange(count) * longest
        bounds = np.stack([starts, starts + self.lengths], axis=1).reshape(-1)
        return {
            "input_ids": ids.reshape(-1),
            "position_ids": np.tile(np.arange(longest), count),
            "cu_seqlens": np.append(bounds, count * longest).astype(np.int32),
            "lengths": np.asarray(self.lengths, np.int32),
            "grid": np.array([count, longest, hidden], np.int64),
        }
