"""RfaAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

Features are made of directions drawn anew in each forward pass; without any it is the kernel that they estimate. Each
head's 1 / sigma is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attenuator.ops.eager_features import normal_directions
from attenuator.ops.rfa.reference import LEAST_WEIGHT, NORM_FLOOR

__all__ = ["attend", "kernel_estimate", "kernel_exact", "parameters"]


def parameters(config: Any) -> dict[str, nn.Parameter]:
    """The trained factors on each head's 1 / sigma, 1 to begin with."""
    return {"inverse_sigma": nn.Parameter(torch.ones(config.num_attention_heads))}


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes` (`sigma`), `weights` (`inverse_sigma` `[heads]`),
            `knobs` (0 features: the exact kernel) and `generator`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    inverse_sigma = layer.weights["inverse_sigma"] / layer.attributes["sigma"]
    query, key = (functional.normalize(rows, dim=-1, eps=NORM_FLOOR) for rows in (query, key))
    num_features = int(layer.knobs.get("num_features", 0))
    if not num_features:
        return kernel_exact(query, key, value, is_token, inverse_sigma)
    drawn = normal_directions(query.shape[1], num_features, query.shape[3], layer.generator).to(query)
    return kernel_estimate(query, key, value, is_token, inverse_sigma, drawn)


def kernel_exact(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, inverse_sigma: Tensor) -> Tensor:
    """Softmax over cosines over sigma^2 (Peng et al., ICLR 2021, section 3.1).

    Args:
        query: `[batch, heads, tokens, head_dim]`, rows of length 1.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding.
        inverse_sigma: `[heads]`, 1 / sigma.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    query = query * inverse_sigma.square()[:, None, None]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None, :], scale=1.0)


def kernel_estimate(
    query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, inverse_sigma: Tensor, directions: Tensor
) -> Tensor:
    """The same by random Fourier features (equation 5).

    Args:
        query: `[batch, heads, tokens, head_dim]`, rows of length 1.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding.
        inverse_sigma: `[heads]`, 1 / sigma.
        directions: `[heads, m, head_dim]`, standard normal.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    scaled = (directions * inverse_sigma[:, None, None]).transpose(-1, -2)

    def features(rows: Tensor) -> Tensor:
        angles = torch.matmul(rows, scaled)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    of_queries, of_keys = features(query), features(key) * is_token[:, None, :, None]
    mixed = torch.matmul(of_queries, torch.matmul(of_keys.transpose(-1, -2), value))
    size = torch.matmul(of_queries, of_keys.sum(dim=2)[..., None]).abs()
    # What the exact sum of weights is at least, as the reference says it.
    least = torch.exp(-2 * inverse_sigma.detach().square()).clamp_min(LEAST_WEIGHT)[:, None, None]
    tokens = is_token.sum(dim=1)[:, None, None, None] * directions.shape[1]
    return mixed / torch.maximum(size, (least * tokens).to(size).clamp_min(torch.finfo(size.dtype).tiny))
