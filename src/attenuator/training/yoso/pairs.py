"""Gradients from the pairs of a query and a key, a block of queries at a time.

Time grows with the square of the length, memory with the length: a block holds at most `BLOCK_PAIRS` pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attenuator.ops.yoso import reference
from attenuator.training.yoso.hashing import Hashing, codes, unit_rows

__all__ = ["PairWeights", "mix_expectation", "pair_gradients"]

BLOCK_PAIRS = 1 << 20


@dataclass(frozen=True, slots=True)
class PairWeights:
    """Weights of a sequence's pairs, and their derivatives by the cosine.

    Attributes:
        hash_bits: tau in the paper.
        collided: whether the derivative is the true one of the pairs that collide, not eq. 4's lower bound.
        softening: epsilon in the root of the true derivative.
        query_codes: int16 `[hashes, heads, queries]`; None for the expectation.
        key_codes: as query_codes.
    """

    hash_bits: int
    collided: bool
    softening: float
    query_codes: Tensor | None = None
    key_codes: Tensor | None = None

    def of(self, cosine: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Weights and derivatives of a block of queries: `[heads, block, keys]` each."""
        met = None
        if self.query_codes is None or self.key_codes is None:
            weights = expectation(cosine, self.hash_bits)
        else:
            counts = torch.zeros(cosine.shape, dtype=torch.int16, device=cosine.device)
            for query_code, key_code in zip(self.query_codes[:, :, rows], self.key_codes, strict=True):
                counts += query_code[:, :, None] == key_code[:, None, :]
            weights, met = counts.to(cosine.dtype) / len(self.key_codes), counts > 0
        if not self.collided:
            return weights, weights * (self.hash_bits / 2.0)
        slope = true_slope(cosine, self.hash_bits, self.softening)
        return weights, slope if met is None else slope * met


def expectation(cosine: Tensor, hash_bits: int) -> Tensor:
    """E = (1 - arccos(x) / pi)^tau of cosines, which rounding may put outside of [-1, 1]."""
    return (1.0 - cosine.clamp(-1.0, 1.0).acos() / math.pi) ** hash_bits


def true_slope(cosine: Tensor, hash_bits: int, softening: float) -> Tensor:
    """dE/dx of eq. 3 with epsilon inside its root: tau (1 - arccos(x)/pi)^(tau-1) / (pi sqrt(1 - x^2 + epsilon))."""
    x = cosine.clamp(-1.0, 1.0)
    power = (1.0 - x.acos() / math.pi) ** (hash_bits - 1)
    return power * (hash_bits / math.pi) * torch.rsqrt((1.0 - x * x + softening).clamp_min(1e-12))


def mix_expectation(query: Tensor, key: Tensor, value: Tensor, hashing: Hashing) -> Tensor:
    """E V in the dtype of the inputs; shapes as in `tables.mix`."""
    mixed = torch.zeros_like(value)
    for place, _ in hashing.sequences:
        units = [_heads_first(unit_rows(rows[place], hashing.least_length)) for rows in (query, key)]
        values = _heads_first(value[place])
        for rows, cosine in _cosines(*units):
            weights = expectation(cosine, hashing.hash_bits)
            mixed[place][rows] = torch.matmul(weights, values).transpose(0, 1)
    return mixed


def pair_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hashing: Hashing,
    collided: bool = False,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the unit rows of query and of key, and by value; shapes as in `tables.table_gradients`.

    Args:
        grad: of the mean over tables, or of the expectation.
        query: of any row length.
        key: as query.
        value: what was mixed.
        hashing: which hashes; for none the weights are the expectation.
        collided: *YOSO, the true derivative of each pair that collides in at least one hash; otherwise eq. 4.
        softening: epsilon in the root of the true derivative.
    """
    by_query, by_key, by_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for place, seed in hashing.sequences:
        sides: list[tuple[Tensor, reference.Side]] = [(query, "query"), (key, "key")] if hashing.num_hashes else []
        hashed = [codes(_heads_first(rows[place]), hashing, seed, side) for rows, side in sides]
        weights = PairWeights(hashing.hash_bits, collided, softening, *hashed)
        unit_query, unit_key = (_heads_first(unit_rows(rows[place], hashing.least_length)) for rows in (query, key))
        grads, values = _heads_first(grad[place]), _heads_first(value[place])
        for rows, cosine in _cosines(unit_query, unit_key):
            share, slope = weights.of(cosine, rows)
            by_value[place] += torch.matmul(share.transpose(1, 2), grads[:, rows]).transpose(0, 1)
            slope = slope * torch.matmul(grads[:, rows], values.transpose(1, 2))
            by_query[place][rows] = torch.matmul(slope, unit_key).transpose(0, 1)
            by_key[place] += torch.matmul(slope.transpose(1, 2), unit_query[:, rows]).transpose(0, 1)
    return by_query, by_key, by_value


def _heads_first(rows: Tensor) -> Tensor:
    """`[tokens, heads, channels]` to `[heads, tokens, channels]`."""
    return rows.transpose(0, 1).contiguous()


def _cosines(unit_query: Tensor, unit_key: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Queries of each block, and their cosines with all keys `[heads, block, keys]`."""
    heads, queries, keys = unit_query.shape[0], unit_query.shape[1], unit_key.shape[1]
    step = max(1, BLOCK_PAIRS // max(1, heads * keys))
    for first in range(0, queries, step):
        rows = slice(first, min(queries, first + step))
        yield rows, torch.matmul(unit_query[:, rows], unit_key.transpose(1, 2))
