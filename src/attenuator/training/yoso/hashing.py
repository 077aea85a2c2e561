"""Which hashes, and their codes in PyTorch: bit for bit those with which YosoAttention fills its tables."""

from __future__ import annotations

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
    """

    cu_seqlens: Tensor
    seed: Tensor
    num_hashes: int
    hash_bits: int
    hash: str
    layer: int

    @property
    def sequences(self) -> list[tuple[slice, int]]:
        """Rows and seed of each sequence that has rows."""
        starts = self.cu_seqlens.tolist()
        spans = zip(starts[:-1], starts[1:], self.seed.tolist(), strict=True)
        return [(slice(first, end), seed) for first, end, seed in spans if end > first]


def unit_rows(rows: Tensor) -> Tensor:
    """Rows of length 1; those shorter than 1e-12 become nearly 0."""
    return functional.normalize(rows, dim=-1, eps=NORM_FLOOR)


def codes(rows: Tensor, hashing: Hashing, seed: int) -> Tensor:
    """Codes of the rows of one sequence.

    Args:
        rows: `[heads, tokens, head_dim]`, of any row length.
        hashing: which hashes.
        seed: of the sequence.

    Returns:
        int16 `[hashes, heads, tokens]`, to be compared with one another: the 16 bits of a code, read with a sign.
    """
    of_head = _hadamard_codes if hashing.hash == "hadamard" else _gaussian_codes
    return torch.stack([of_head(one.float(), hashing, seed, head) for head, one in enumerate(rows)], dim=1)


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


def _hadamard_codes(rows: Tensor, hashing: Hashing, seed: int, head: int) -> Tensor:
    """As `_gaussian_codes`."""
    settings = (seed, hashing.layer, head, hashing.num_hashes, hashing.hash_bits)
    whole = reference.codes(rows.cpu().numpy(), *settings, hash="hadamard")
    return torch.from_numpy(whole.T.astype(np.uint16).view(np.int16)).to(rows.device)
