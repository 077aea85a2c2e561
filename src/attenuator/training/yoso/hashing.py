"""Hashes and their codes in PyTorch: bit for bit those with which YosoAttention fills its tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attenuator.ops.yoso import reference
from attenuator.ops.yoso.reference import NORM_FLOOR

__all__ = ["NORM_FLOOR", "Hashing", "codes", "unit_rows"]

CACHED_PLANES = 64


@dataclass(frozen=True, slots=True)
class Hashing:
    """Hashes of a packed batch: equal ones give equal codes.

    Attributes:
        cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T; on the CPU.
        seed: int64 `[B]`, on the CPU.
        num_hashes: m in the paper; 0 is the expectation.
        hash_bits: tau in the paper.
        hash: `gaussian` or `hadamard`.
        layer: random stream, the operator's attribute of this name.
        norm_lift: bound on the squared norms of rows; 0 for none.
    """

    cu_seqlens: Tensor
    seed: Tensor
    num_hashes: int
    hash_bits: int
    hash: str
    layer: int
    norm_lift: float = 0.0

    @property
    def least_length(self) -> float:
        """What shorter rows count as, having a coordinate more: the root of the norm lift, if there is one."""
        return max(NORM_FLOOR, math.sqrt(self.norm_lift))

    @property
    def sequences(self) -> list[tuple[slice, int]]:
        """Rows and seed of each sequence that has rows."""
        starts = self.cu_seqlens.tolist()
        spans = zip(starts[:-1], starts[1:], self.seed.tolist(), strict=True)
        return [(slice(first, end), seed) for first, end, seed in spans if end > first]


def unit_rows(rows: Tensor, least_length: float = NORM_FLOOR) -> Tensor:
    """Rows of length 1; shorter ones than `least_length` are divided by that, which makes those below 1e-12 nearly 0.

    Of rows with a norm lift these are the coordinates that products see: where a query has its added coordinate, keys
    have 0, and the other way round.
    """
    return functional.normalize(rows, dim=-1, eps=least_length)


def codes(rows: Tensor, hashing: Hashing, seed: int, side: reference.Side) -> Tensor:
    """Codes of the rows of one sequence.

    Args:
        rows: `[heads, tokens, head_dim]`, of any row length.
        hashing: which hashes.
        seed: of the sequence.
        side: whose rows they are: a norm lift gives queries one coordinate and keys another.

    Returns:
        int16 `[hashes, heads, tokens]`, to be compared with one another: the 16 bits of a code, read with a sign.
    """
    if hashing.hash == "hadamard" or hashing.norm_lift:  # whole numbers beyond those that float32 multiplies exactly
        heads = [_reference_codes(one.float(), hashing, seed, head, side) for head, one in enumerate(rows)]
    else:
        heads = [_gaussian_codes(one.float(), hashing, seed, head) for head, one in enumerate(rows)]
    return torch.stack(heads, dim=1)


@lru_cache(maxsize=CACHED_PLANES)
def _planes(seed: int, layer: int, head: int, num_planes: int, head_dim: int) -> Tensor:
    """Odd integers `[head_dim, num_planes]`, float32."""
    planes = reference.gaussian_planes(seed, layer, head, num_planes, head_dim)
    return torch.from_numpy(np.ascontiguousarray(planes.T).astype(np.float32))


def _gaussian_codes(rows: Tensor, hashing: Hashing, seed: int, head: int) -> Tensor:
    """int16 `[hashes, tokens]` of one head's rows `[tokens, head_dim]`."""
    hashes, bits = hashing.num_hashes, hashing.hash_bits
    planes = _planes(seed, hashing.layer, head, hashes * bits, rows.shape[1]).to(rows.device)
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(float(reference.SMALLEST_MAXIMUM))
    # Tensor over tensor is one rounding; a number over a tensor is a reciprocal and a product, with two.
    steps = torch.full_like(largest, 127.0) / largest
    # Whole numbers, and so are their products; sums over 256 channels stay below 2^24, exact in float32.
    signs = torch.matmul((rows * steps).round_(), planes) > 0
    powers = 2 ** torch.arange(bits, dtype=torch.float32, device=rows.device)
    whole = torch.matmul(signs.view(len(rows), hashes, bits).float(), powers)
    return whole.to(torch.int32).to(torch.int16).t().contiguous()


def _reference_codes(rows: Tensor, hashing: Hashing, seed: int, head: int, side: reference.Side) -> Tensor:
    """As `_gaussian_codes`."""
    settings = (seed, hashing.layer, head, hashing.num_hashes, hashing.hash_bits, hashing.hash, hashing.norm_lift)
    whole = reference.codes(rows.detach().cpu().numpy(), *settings, side)  # type: ignore[arg-type]
    return torch.from_numpy(whole.T.astype(np.uint16).view(np.int16)).to(rows.device)
