"""ReformerAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

O(tokens^2): each round's chunks are a mask. The rotations are not those of the operator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attenuator.ops.reformer.reference import NORM_FLOOR

__all__ = ["attend", "meet", "random_buckets"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: the queries, since they are the keys before their lengths are taken off.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `knobs` (0 rounds: exact softmax), `generator` and `attributes`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    unit = functional.normalize(key, dim=-1, eps=NORM_FLOOR)
    scores = torch.matmul(query, unit.transpose(-1, -2)) * (layer.attributes["scale"] or query.shape[3] ** -0.5)
    lowest = torch.finfo(scores.dtype).min
    # Below every score, and above what is masked: a row that sees nothing else sees itself.
    scores = scores.masked_fill(torch.eye(query.shape[2], dtype=torch.bool, device=query.device), lowest / 2)
    seen = is_token[:, None, None, :]
    rounds = int(layer.knobs.get("num_rounds", 0))
    if rounds:
        chunk_size = layer.attributes["chunk_size"]
        all_met = 2 * chunk_size * rounds >= is_token.sum(dim=1)  # as the operator has it
        met = meet(random_buckets(query.detach(), is_token, rounds, layer), is_token, chunk_size)
        seen = seen & (met | all_met[:, None, None, None])
    scores = scores.masked_fill(~seen, lowest)
    return torch.matmul(scores.softmax(dim=-1), value)


def _chunks(is_token: Tensor, chunk_size: int) -> Tensor:
    """How many chunks each sequence has, int64 `[batch]`."""
    lengths: Tensor = is_token.sum(dim=1)
    return (lengths + chunk_size - 1) // chunk_size


def random_buckets(rows: Tensor, is_token: Tensor, rounds: int, layer: Any) -> Tensor:
    """Buckets argmax([xR; -xR]) with R drawn anew (Kitaev et al., ICLR 2020, section 2).

    Args:
        rows: `[batch, heads, tokens, head_dim]`.
        is_token: bool `[batch, tokens]`.
        rounds: how many.
        layer: as for `attend`.

    Returns:
        int64 `[batch, heads, rounds, tokens]`.
    """
    halves = _chunks(is_token, layer.attributes["chunk_size"]).clamp(max=layer.attributes["num_buckets"] // 2)
    most = int(halves.max()) if halves.numel() else 0
    matrix = torch.randn(rows.shape[1], rounds, max(most, 1), rows.shape[3], generator=layer.generator)
    projected = torch.einsum("bhnd,hrpd->bhrnp", rows, matrix.to(rows))
    there = torch.arange(projected.shape[4], device=rows.device) < halves[:, None].clamp(min=1)
    both = [side.masked_fill(~there[:, None, None, None, :], -math.inf) for side in (projected, -projected)]
    return torch.cat(both, dim=-1).argmax(dim=-1)


def meet(buckets: Tensor, is_token: Tensor, chunk_size: int) -> Tensor:
    """Whether each row sees each key in any round.

    Outputs of rounds, with weights softmax over rounds of log sum exp and the logits of a pair less the logarithm of
    the number of rounds in which it meets (appendix A), come to softmax over these keys.

    Args:
        buckets: int64 `[batch, heads, rounds, tokens]`.
        is_token: bool `[batch, tokens]`.
        chunk_size: sorted rows of a chunk.

    Returns:
        bool `[batch, heads, tokens, tokens]`; anything on padding.
    """
    tokens = buckets.shape[3]
    last = int(buckets.max()) + 1 if buckets.numel() else 0
    order = torch.argsort(buckets.masked_fill(~is_token[:, None, None, :], last), dim=-1, stable=True)
    place = torch.arange(tokens, device=order.device).expand_as(order)
    chunk = torch.empty_like(order).scatter_(-1, order, place) // chunk_size
    before = (chunk - 1) % _chunks(is_token, chunk_size).clamp(min=1)[:, None, None, None]
    seen = torch.zeros(*buckets.shape[:2], tokens, tokens, dtype=torch.bool, device=buckets.device)
    for own, previous in zip(chunk.unbind(2), before.unbind(2), strict=True):
        seen |= (own[..., None] == own[:, :, None, :]) | (previous[..., None] == own[:, :, None, :])
    return seen
