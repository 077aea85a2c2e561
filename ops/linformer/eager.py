"""LinformerAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attenuator.ops.spec import Attribute

__all__ = ["SIZES", "attend", "shared_parameters"]

SIZES = (Attribute("projected_tokens", "int", "k, rows that keys are projected to", default=256, low=1, high=2**16),)
INITIAL_STD = 0.02  # of the published code


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`, tokens at most max_tokens.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes` and the weight `key_projection`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    projection = layer.weights["key_projection"].unflatten(0, (query.shape[1], -1))[:, :, : query.shape[2]]
    keys = torch.matmul(projection, key * is_token[:, None, :, None])
    values = torch.matmul(projection, value)
    return functional.scaled_dot_product_attention(query, keys, values, scale=layer.attributes["scale"] or None)


def shared_parameters(config: Any) -> dict[str, nn.Parameter]:
    """One projection `[heads * k, max_tokens]` for keys and values of all layers, as in the published code."""
    rows = config.num_attention_heads * config.size("projected_tokens")
    return {"key_projection": nn.Parameter(INITIAL_STD * torch.randn(rows, config.max_tokens))}
