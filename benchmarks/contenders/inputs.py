"""Inputs, and the NumPy truth about a few of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attenuator.ops.softmax.reference import probabilities
from attenuator.ops.yoso.reference import codes, collision_probability, convolution, unit

Array = np.ndarray[Any, Any]
# Rows and heads of a sequence whose results are compared with NumPy; all of them would take longer than the timing.
CHECKED_ROWS = 24
CHECKED_HEADS = 2


@dataclass(frozen=True)
class Packed:
    """A packed batch of projected rows.

    Attributes:
        query: float32 `[T, num_heads * head_dim]`.
        key: as query.
        value: as query.
        lengths: tokens of each sequence.
        num_heads: attention heads.
    """

    query: Array
    key: Array
    value: Array
    lengths: tuple[int, ...]
    num_heads: int

    @property
    def cu_seqlens(self) -> Array:
        """int32 `[B + 1]`."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    def padded(self) -> tuple[Array, Array, Array]:
        """Query, key and value `[B, longest, num_heads * head_dim]`, zeros behind each sequence."""
        padded = []
        for rows in (self.query, self.key, self.value):
            grid = np.zeros((len(self.lengths), max(self.lengths), rows.shape[1]), np.float32)
            grid[self.is_token()] = rows
            padded.append(grid)
        return padded[0], padded[1], padded[2]

    def is_token(self) -> Array:
        """Which places of the padded batch hold a token, `[B, longest]`."""
        places: Array = np.arange(max(self.lengths))[None, :] < np.asarray(self.lengths)[:, None]
        return places


def gaussian(lengths: Sequence[int], num_heads: int, head_dim: int, seed: int = 0) -> Packed:
    """Independent Gaussian rows: no key is like any query, which costs the same as any other input."""
    random = np.random.default_rng(seed)
    shape = (3, sum(lengths), num_heads * head_dim)
    query, key, value = random.standard_normal(shape, dtype=np.float32)
    return Packed(query, key, value, tuple(lengths), num_heads)


def clustered(length: int, num_heads: int, head_dim: int, *, clusters: int = 32, spread: float = 0.6) -> Packed:
    """Queries and keys around shared centres, values with a centre's own mean: attention has something to find."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((2, clusters, num_heads * head_dim), dtype=np.float32)
    topics = random.integers(0, clusters, (2, length))
    noise = random.standard_normal((3, length, num_heads * head_dim), dtype=np.float32)
    query = centres[0][topics[0]] + spread * noise[0]
    key = centres[0][topics[1]] + spread * noise[1]
    return Packed(query, key, centres[1][topics[1]] + noise[2], (length,), num_heads)


def correlated(length: int, channels: int) -> Array:
    """Rows before the value projection, float32 `[length, channels]`: a shared mean and eight clusters, as in text."""
    random = np.random.default_rng(1)
    mean = random.standard_normal(channels, dtype=np.float32)
    centres = random.standard_normal((8, channels), dtype=np.float32)
    noise = random.standard_normal((length, channels), dtype=np.float32)
    rows: Array = mean + 0.7 * centres[random.integers(0, 8, length)] + 0.7 * noise
    return rows


def conv_kernel(num_heads: int, size: int) -> Array:
    """YOSO-C's depthwise kernel, float32 `[num_heads, size]`."""
    random = np.random.default_rng(4)
    return random.standard_normal((num_heads, size), dtype=np.float32) / np.float32(size)


def error_of_softmax(packed: Packed, output: Array) -> float:
    """Largest difference of `SoftmaxAttention`'s or a baseline's output to NumPy, relative to the largest value."""
    return _largest_error(packed, output, lambda q, k, _: probabilities(q, k), normalize=False)


def error_of_yoso(
    packed: Packed, output: Array, num_hashes: int, hash_bits: int, seed: int = 0, conv_weight: Array | None = None
) -> float:
    """Largest difference of `YosoAttention`'s output to NumPy, whose hashes are the same."""

    def weights(query: Array, key: Array, head: int) -> Array:
        if num_hashes == 0:
            return collision_probability(query, key, hash_bits)
        hashed = [codes(rows, seed, 0, head, num_hashes, hash_bits, "gaussian") for rows in (query, key)]
        collisions: Array = (hashed[0][:, None, :] == hashed[1][None, :, :]).mean(axis=2)
        return collisions

    return _largest_error(packed, output, weights, normalize=True, conv_weight=conv_weight)


def _largest_error(
    packed: Packed, output: Array, weights: Any, *, normalize: bool, conv_weight: Array | None = None
) -> float:
    """Over a sample of rows of the first and last sequence, in the first and last head."""
    head_dim = packed.query.shape[1] // packed.num_heads
    starts = packed.cu_seqlens
    worst = []
    for b in sorted({0, len(packed.lengths) - 1}):
        whole = slice(starts[b], starts[b + 1])
        rows = np.unique(np.linspace(starts[b], starts[b + 1] - 1, CHECKED_ROWS).astype(int))
        for head in np.unique(np.linspace(0, packed.num_heads - 1, CHECKED_HEADS).astype(int)):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            truth = weights(packed.query[rows, columns], packed.key[whole, columns], int(head)) @ packed.value[
                whole, columns
            ].astype(np.float64)
            truth = unit(truth) if normalize else truth
            if conv_weight is not None:
                truth = truth + convolution(packed.value[whole, columns], conv_weight[head])[rows - starts[b]]
            worst.append(np.abs(output[rows, columns] - truth).max() / max(np.abs(truth).max(), 1e-30))
    return float(np.max(worst))  # NaN where any is
