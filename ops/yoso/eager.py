"""YosoAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

O(tokens^2): the expectation, or hashes drawn anew in each forward pass. The planes are not those of the operator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "attend",
    "collisions",
    "expected_collisions",
    "gaussian_planes",
    "sequence_conv",
    "yoso_attention",
]

NORM_FLOOR = 1e-12
# Evaluation of a long document goes through the queries in blocks of at most this many scores.
BLOCK_SCORES = 1 << 24


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `hash_bits`, `knobs` (0 hashes: the expectation), `generator` and
            `conv_weight`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    planes = None
    num_hashes = int(layer.knobs.get("num_hashes", 0))
    if num_hashes:
        planes = gaussian_planes(query.shape[1], num_hashes, layer.hash_bits, query.shape[3], layer.generator)
    mixed = yoso_attention(query, key, value, is_token, layer.hash_bits, planes)
    return mixed if layer.conv_weight is None else mixed + sequence_conv(value, layer.conv_weight)


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


def sequence_conv(value: Tensor, conv_weight: Tensor) -> Tensor:
    """YOSO-C's depthwise convolution along the sequence (MATH 1.1, step 7), a cross-correlation.

    Args:
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        conv_weight: `[heads, c]`, c odd: one kernel per head, shared by its channels.

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
