"""SoftmaxAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["attend", "inside"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes`: `scale`, `window` and `global_tokens`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    visible = is_token[:, None, None, :]
    if window := layer.attributes["window"]:
        visible = visible & inside(query.shape[2], window, layer.attributes["global_tokens"], query.device)
    scale = layer.attributes["scale"] or None
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)


def inside(tokens: int, window: int, global_tokens: int, device: torch.device) -> Tensor:
    """Which keys a row sees under a window, bool `[tokens, tokens]`.

    Args:
        tokens: of the longest sequence.
        window: keys with |i - j| <= window.
        global_tokens: 1 where the first token sees all, and all see it.
        device: of the result.
    """
    places = torch.arange(tokens, device=device)
    near = (places[:, None] - places).abs() <= window
    return near | (places[:, None] < global_tokens) | (places < global_tokens)
