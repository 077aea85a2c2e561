"""LinearAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["attend"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, which has nothing to add.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    of_queries = functional.elu(query) + 1
    of_keys = (functional.elu(key) + 1) * is_token[:, None, :, None]
    mixed = torch.matmul(of_queries, torch.matmul(of_keys.transpose(-1, -2), value))
    return mixed / torch.matmul(of_queries, of_keys.sum(dim=2)[..., None])
