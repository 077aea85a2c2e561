"""LongShortAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attenuator.ops.softmax.eager import inside
from attenuator.ops.spec import Attribute

__all__ = ["SIZES", "attend", "parameters"]

SIZES = (Attribute("global_rows", "int", "r, mixtures of all keys of a head", default=32, low=1, high=4096),)
INITIAL_STD = 0.02


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes`, `knobs` (`window`) and the weights of `parameters`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    heads, tokens, weights = query.shape[1], query.shape[2], layer.weights
    trained, epsilon = layer.attributes["trained_window"], layer.attributes["epsilon"]
    window = min(int(layer.knobs.get("window", 0)) or trained, trained)
    here = is_token[:, None, :, None]
    projection = weights["dynamic_projection"].unflatten(0, (heads, -1))
    shares = torch.matmul(key, projection.transpose(-1, -2)).masked_fill(~here, -torch.inf)
    mixing = torch.softmax(shares, dim=2).masked_fill(~here, 0.0).transpose(-1, -2)  # of an empty text NaN

    def both(rows: Tensor, of: str) -> Tensor:
        local = layer_norm(rows, weights[f"local_{of}_norm"], epsilon)
        return torch.cat(
            [local, layer_norm(torch.matmul(mixing, rows * here), weights[f"global_{of}_norm"], epsilon)], 2
        )

    keys, values = both(key, "key"), both(value, "value")
    near = inside(tokens, window, 0, query.device) & is_token[:, None, None, :]
    visible = torch.cat([near, near.new_ones(1, 1, 1, projection.shape[1]).expand(*near.shape[:3], -1)], dim=3)
    scale = layer.attributes["scale"] or None
    mixed: Tensor = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale)
    return mixed


def layer_norm(rows: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """`[batch, heads, rows, columns]`, by factors and terms `[2, heads * columns]`."""
    factor, term = norm.unflatten(1, (rows.shape[1], 1, rows.shape[3]))
    return nn.functional.layer_norm(rows, rows.shape[-1:], eps=epsilon) * factor + term


def parameters(config: Any) -> dict[str, nn.Parameter]:
    """W_P `[heads * r, head_dim]`, and layer norms that change nothing yet, keys' and values' apart."""
    heads, size = config.num_attention_heads, config.hidden_size
    standard = torch.stack([torch.ones(size), torch.zeros(size)])
    drawn = INITIAL_STD * torch.randn(heads * config.size("global_rows"), config.head_dim)
    norms = [f"{where}_{of}_norm" for where in ("local", "global") for of in ("key", "value")]
    return {"dynamic_projection": nn.Parameter(drawn)} | {name: nn.Parameter(standard.clone()) for name in norms}
