"""YosoAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

O(tokens^2): the expectation, or hashes drawn anew in each forward pass. The planes are not those of the operator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attenuator.ops.yoso.reference import NORM_FLOOR, SUM_FLOOR

__all__ = [
    "attend",
    "collisions",
    "expected_collisions",
    "gaussian_planes",
    "parameters",
    "sequence_conv",
    "yoso_attention",
]

# Evaluation of a long document goes through the queries in blocks of at most this many scores.
BLOCK_SCORES = 1 << 24


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes`, `knobs` (0 hashes: the expectation), `generator` and
            `weights`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    planes = None
    hash_bits, norm_lift = layer.attributes["hash_bits"], layer.attributes["norm_lift"]
    num_hashes = int(layer.knobs.get("num_hashes", 0))
    if num_hashes:
        dims = query.shape[3] + (2 if norm_lift else 0)
        planes = gaussian_planes(query.shape[1], num_hashes, hash_bits, dims, layer.generator)
    normalize = layer.attributes["normalize"]
    mixed = yoso_attention(query, key, value, is_token, hash_bits, planes, normalize=normalize, norm_lift=norm_lift)
    conv_weight = layer.weights.get("conv_weight")
    return mixed if conv_weight is None else mixed + sequence_conv(value, conv_weight)


def parameters(config: Any) -> dict[str, nn.Parameter]:
    """YOSO-C's kernel `[heads, conv_size]`, where the encoder's config asks for one."""
    size = config.conv_size
    return {"conv_weight": nn.Parameter(torch.randn(config.num_attention_heads, size) / size)} if size else {}


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


def _unit_rows(rows: Tensor, norm_lift: float, place: int) -> Tensor:
    """Rows of length 1; lifted ones (appendix 1.1) with two coordinates more, their own at `place` (0 or 1)."""
    unit = functional.normalize(rows, dim=-1, eps=max(NORM_FLOOR, math.sqrt(norm_lift)))
    if not norm_lift:
        return unit
    # It meets 0 in every product, so that it has no gradient; that of the root would be infinite at 0.
    added = (1.0 - unit.detach().square().sum(dim=-1, keepdim=True)).clamp_(min=0.0).sqrt_()
    return torch.cat(
        [unit, *((added, torch.zeros_like(added)) if place == 0 else (torch.zeros_like(added), added))], -1
    )


def yoso_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_token: Tensor,
    hash_bits: int,
    planes: Tensor | None = None,
    *,
    normalize: int = 1,
    norm_lift: float = 0.0,
) -> Tensor:
    """Rows of W V, normalised as the operator's attribute says; rows without any collision stay 0 (MATH 1.1).

    Args:
        query: `[batch, heads, tokens, head_dim]`; normalised here.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding.
        hash_bits: tau.
        planes: `[heads, hashes, hash_bits, head_dim]` for the sampled W, head_dim + 2 with a norm lift; None for the
            expectation YOSO-E.
        normalize: 1 for N-YOSO's rows of length 1, 0 for W V itself, 2 for W V over the row's sum of W.
        norm_lift: bound on the squared norms of query and key (appendix 1.1); 0 for none.

    Returns:
        `[batch, heads, tokens, value_dim]`.
    """
    query, key = _unit_rows(query, norm_lift, 0), _unit_rows(key, norm_lift, 1)
    if normalize == 2:  # one column more sums the weights, with the gradient that this sum has
        value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
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
    if normalize == 2:
        return mixed[..., :-1] / mixed[..., -1:].clamp_min(SUM_FLOOR)
    return functional.normalize(mixed, dim=-1, eps=NORM_FLOOR) if normalize else mixed


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
