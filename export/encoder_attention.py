"""Dense attention of the project's own encoder, for training and as the eager reference at export.

Everything here works on padded tensors `[batch, heads, tokens, head_dim]` and costs O(tokens^2): clear to read and
differentiable. The exported graph has the linear-time operators in its place.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "PackedLayout",
    "collisions",
    "expected_collisions",
    "gaussian_planes",
    "sequence_conv",
    "softmax_attention",
    "yoso_attention",
]

NORM_FLOOR = 1e-12
# Evaluation of a long document goes through the queries in blocks of at most this many scores.
BLOCK_SCORES = 1 << 24


class PackedLayout:
    """Where the rows of a packed batch `[T, ...]` sit in a padded one `[B, longest, ...]`.

    Args:
        cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        lengths = torch.diff(cu_seqlens.long())
        self.batch = int(lengths.numel())
        self.longest = int(lengths.max()) if self.batch else 0
        rows = torch.arange(self.batch, device=lengths.device).repeat_interleave(lengths)
        inside = torch.arange(rows.numel(), device=lengths.device) - cu_seqlens.long()[rows]
        self.slots = rows * self.longest + inside
        self.is_token = torch.arange(self.longest, device=lengths.device) < lengths[:, None]

    def pad(self, packed: Tensor, heads: int) -> Tensor:
        """`[T, heads * head_dim]` to `[B, heads, longest, head_dim]`, zeros behind the end of a sequence."""
        padded = packed.new_zeros(self.batch * self.longest, packed.shape[1]).index_copy(0, self.slots, packed)
        return padded.view(self.batch, self.longest, heads, packed.shape[1] // heads).transpose(1, 2)

    def pack(self, padded: Tensor) -> Tensor:
        """`[B, heads, longest, head_dim]` to `[T, heads * head_dim]`."""
        flat = padded.transpose(1, 2).reshape(self.batch * self.longest, padded.shape[1] * padded.shape[3])
        return flat.index_select(0, self.slots)


def expected_collisions(query: Tensor, key: Tensor, hash_bits: int) -> Tensor:
    """Collision probability of unit vectors, E_ij = (1 - arccos(q_i.k_j) / pi)^tau (YOSO paper, section 3.2).

    Args:
        query: `[batch, heads, query, head_dim]`, rows of length 1.
        key: `[batch, heads, key, head_dim]`, rows of length 1.
        hash_bits: tau, bits of one hash code.

    Returns:
        `[batch, heads, query, key]`.
    """
    # Rounding puts the cosine of equal rows above 1, where arccos is NaN.
    angle = torch.matmul(query, key.transpose(-1, -2)).clamp_(-1.0, 1.0).acos_()
    return _power(angle.mul_(-1.0 / math.pi).add_(1.0), hash_bits)


def _power(base: Tensor, exponent: int) -> Tensor:
    """`base ** exponent` by squaring, four times as fast as `pow` on a CPU; may overwrite base."""
    if exponent == 1:
        return base
    if exponent % 2:
        return base * _power(base.clone(), exponent - 1)
    return _power(base.square_(), exponent // 2)


def collisions(query: Tensor, key: Tensor, planes: Tensor) -> Tensor:
    """Share of hashes in which query and key fall into the same bucket, B_ij / m (MATH 1.1, steps 3 to 5).

    Args:
        query: `[batch, heads, query, head_dim]`.
        key: `[batch, heads, key, head_dim]`.
        planes: Gaussian hyperplanes `[heads, hashes, hash_bits, head_dim]`.

    Returns:
        `[batch, heads, query, key]`; its mean over planes is `expected_collisions`.
    """
    hashes, bits = planes.shape[1:3]
    weights = (2 ** torch.arange(bits, device=planes.device)).to(planes.dtype)

    def codes(rows: Tensor) -> Tensor:
        signs = torch.einsum("bhnd,hmtd->bhmnt", rows, planes) > 0
        return torch.matmul(signs.to(planes.dtype), weights).to(torch.int16)

    query_codes, key_codes = codes(query), codes(key)
    count = torch.zeros(*query.shape[:3], key.shape[2], dtype=torch.int16, device=query.device)
    for index in range(hashes):
        count += query_codes[:, :, index, :, None] == key_codes[:, :, index, None, :]
    return count.to(query.dtype) / hashes


class _SurrogateGradient(torch.autograd.Function):
    """Y = W V with W from (q, k) and, backwards, the lower bound of YOSO's eq. 4 as dW/dx = (tau / 2) W.

    The true derivative of arccos is unbounded at cosine 1; training through it diverged (MATH 1.5).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, hash_bits: int) -> Tensor:
        ctx.save_for_backward(query, key, value, weights)
        ctx.hash_bits = hash_bits
        return torch.matmul(weights, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        scores = torch.matmul(grad, value.transpose(-1, -2)).mul_(weights).mul_(ctx.hash_bits / 2.0)
        return (
            torch.matmul(scores, key),
            torch.matmul(scores.transpose(-1, -2), query),
            torch.matmul(weights.transpose(-1, -2), grad),
            None,
            None,
        )


def yoso_attention(
    query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, hash_bits: int, planes: Tensor | None = None
) -> Tensor:
    """N-YOSO (MATH 1.1): rows of W V, scaled to length 1; rows without any collision stay 0.

    Args:
        query: `[batch, heads, tokens, head_dim]`; normalised here.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding.
        hash_bits: tau.
        planes: `[heads, hashes, hash_bits, head_dim]` for the sampled W; None for the expectation YOSO-E.

    Returns:
        `[batch, heads, tokens, value_dim]`.
    """
    query = functional.normalize(query, dim=-1, eps=NORM_FLOOR)
    key = functional.normalize(key, dim=-1, eps=NORM_FLOOR)
    mask = is_token[:, None, None, :].to(query.dtype)

    def mix(block: Tensor) -> Tensor:
        with torch.no_grad():
            weights = expected_collisions(block, key, hash_bits) if planes is None else collisions(block, key, planes)
            weights.mul_(mask)
        mixed: Tensor = _SurrogateGradient.apply(block, key, value, weights, hash_bits)
        return mixed

    if torch.is_grad_enabled():
        mixed = mix(query)
    else:
        scores_per_query = max(1, key.shape[0] * key.shape[1] * key.shape[2])
        blocks = query.split(max(1, BLOCK_SCORES // scores_per_query), dim=2)
        mixed = torch.cat([mix(block) for block in blocks], dim=2)
    return functional.normalize(mixed, dim=-1, eps=NORM_FLOOR)


def softmax_attention(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor) -> Tensor:
    """Exact attention softmax(Q K^T / sqrt(head_dim)) V over the real keys; shapes as in `yoso_attention`."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None, :])


def sequence_conv(value: Tensor, conv_weight: Tensor) -> Tensor:
    """YOSO-C's depthwise convolution along the sequence (MATH 1.1, step 7), a cross-correlation.

    Args:
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        conv_weight: `[heads, c]`, c odd: one kernel a head, shared by its channels.

    Returns:
        `[batch, heads, tokens, value_dim]`: out_i = sum_k w_k value_{i + k - c // 2}, zero beyond either end.
    """
    tokens, size = value.shape[2], conv_weight.shape[1]
    padded = functional.pad(value, (0, 0, size // 2, size // 2))
    taps = conv_weight[:, :, None, None]
    out = taps[:, 0] * padded[:, :, :tokens]
    for tap in range(1, size):
        out = out + taps[:, tap] * padded[:, :, tap : tap + tokens]
    return out


def gaussian_planes(
    heads: int, hashes: int, hash_bits: int, head_dim: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draw hyperplanes `[heads, hashes, hash_bits, head_dim]`, each entry N(0, 1)."""
    return torch.randn(heads, hashes, hash_bits, head_dim, generator=generator)
