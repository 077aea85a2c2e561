"""YOSO attention of the project's own encoder, in training."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attenuator.training.yoso.attention import EVALUATION_SEED, attend, draw_seed
from attenuator.training.yoso.settings import Settings

__all__ = ["mix"]


def mix(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, layer: Any) -> Tensor | None:
    """The attention of one layer, without its convolution.

    Args:
        query: `[T, heads * head_dim]`.
        key: as query.
        value: as query.
        cu_seqlens: int32 `[B+1]`.
        layer: the encoder's attention module: its attributes, and `knobs` (0 hashes where they name none). In training
            every call draws hashes from its `generator`, or PyTorch's own; in evaluation they are always the same.

    Returns:
        `[T, heads * head_dim]`; None where the layer has a norm lift, whose gradient is not here.
    """
    if layer.norm_lift:
        return None
    settings = Settings(
        num_hashes=int(layer.knobs.get("num_hashes", 0)),
        hash_bits=layer.hash_bits,
        hash=layer.hash,
        normalize=layer.normalize,
    )
    seed = draw_seed(layer.generator) if layer.training else EVALUATION_SEED
    query, key, value = (tensor.unflatten(1, (layer.num_heads, -1)) for tensor in (query, key, value))
    return attend(query, key, value, cu_seqlens, settings, seed, layer.layer).flatten(1)
