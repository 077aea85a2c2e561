"""YOSO attention of the project's own encoder, in training."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attenuator.training.yoso.attention import EVALUATION_SEED, attend, draw_seeds
from attenuator.training.yoso.settings import Settings

__all__ = ["mix"]


def mix(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, layer: Any) -> Tensor:
    """The attention of one layer, without its convolution.

    Args:
        query: `[T, heads * head_dim]`.
        key: as query.
        value: as query.
        cu_seqlens: int32 `[B+1]`.
        layer: the encoder's attention module: its attributes, and `knobs` (0 hashes where they name none). In training
            every call draws hashes for each sequence from its `generator`, or PyTorch's own; in evaluation they are
            always the same.

    Returns:
        `[T, heads * head_dim]`.
    """
    num_hashes = int(layer.knobs.get("num_hashes", 0))
    chosen = {name: layer.attributes[name] for name in ("hash_bits", "hash", "normalize", "norm_lift")}
    settings = Settings(num_hashes=num_hashes, **chosen)
    seed = draw_seeds(len(cu_seqlens) - 1, layer.generator) if layer.training else EVALUATION_SEED
    query, key, value = (tensor.unflatten(1, (layer.num_heads, -1)) for tensor in (query, key, value))
    return attend(query, key, value, cu_seqlens, settings, seed, layer.layer).flatten(1)
