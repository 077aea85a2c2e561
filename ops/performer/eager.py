"""PerformerAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

Features are made of directions drawn anew in each forward pass; without any it is softmax attention.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attenuator.ops.eager_features import orthogonal_directions

__all__ = ["attend", "softmax_estimate"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes` (`scale`), `knobs` (0 features: softmax) and
            `generator`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    heads, head_dim = query.shape[1], query.shape[3]
    scale = layer.attributes["scale"] or 1 / math.sqrt(head_dim)
    num_features = int(layer.knobs.get("num_features", 0))
    if not num_features:
        mask = is_token[:, None, None, :]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    root = math.sqrt(abs(scale))
    directions = orthogonal_directions(heads, num_features, head_dim, layer.generator).to(query)
    return softmax_estimate(query * math.copysign(root, scale), key * root, value, is_token, directions)


def softmax_estimate(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, directions: Tensor) -> Tensor:
    """Softmax attention by positive features (Choromanski et al., ICLR 2021, equation 4 and lemma 1).

    Args:
        query: `[batch, heads, tokens, head_dim]`, scaled.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding.
        directions: `[heads, m, head_dim]`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    of_keys = torch.matmul(key, directions.transpose(-1, -2)) - 0.5 * key.square().sum(dim=-1, keepdim=True)
    of_keys = of_keys.masked_fill(~is_token[:, None, :, None], -math.inf)
    # Of each feature over the sequence; changes nothing but the range, and needs no gradient.
    largest = of_keys.detach().amax(dim=2, keepdim=True).clamp_min(torch.finfo(of_keys.dtype).min)
    relative = torch.exp(of_keys - largest)
    of_queries = torch.matmul(query, directions.transpose(-1, -2)) + largest
    weights = torch.exp(of_queries - of_queries.detach().amax(dim=-1, keepdim=True))
    mixed = torch.matmul(weights, torch.matmul(relative.transpose(-1, -2), value))
    return mixed / torch.matmul(weights, relative.sum(dim=2)[..., None])
