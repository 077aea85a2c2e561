"""YOSO attention of the project's own encoder, in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attenuator.ops.torch_op import overload
from attenuator.ops.yoso.spec import SPEC
from attenuator.training.yoso.attention import EVALUATION_SEED, attend, draw_seeds
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
            every call draws hashes for each sequence from its `generator`, or PyTorch's own; in evaluation they are
            always the same.

    Returns:
        `[T, heads * head_dim]`; None where the layer has a norm lift and may need its gradient, which is not here.
    """
    num_hashes = int(layer.knobs.get("num_hashes", 0))
    if layer.attributes["norm_lift"]:
        is_trained = layer.training or torch.is_grad_enabled()
        return None if is_trained else mix_as_served(query, key, value, cu_seqlens, layer, num_hashes)
    chosen = {name: layer.attributes[name] for name in ("hash_bits", "hash", "normalize")}
    settings = Settings(num_hashes=num_hashes, **chosen)
    seed = draw_seeds(len(cu_seqlens) - 1, layer.generator) if layer.training else EVALUATION_SEED
    query, key, value = (tensor.unflatten(1, (layer.num_heads, -1)) for tensor in (query, key, value))
    return attend(query, key, value, cu_seqlens, settings, seed, layer.layer).flatten(1)


def mix_as_served(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, layer: Any, num_hashes: int) -> Tensor:
    """What the bundle computes, a norm lift included, with the hashes of evaluation; has no gradient."""
    offsets = cu_seqlens.to("cpu", torch.int32)
    mixed: Tensor = overload(SPEC)(
        query.float(),
        key.float(),
        value.float(),
        offsets,
        torch.full_like(offsets[1:], num_hashes),
        torch.full((len(offsets) - 1,), EVALUATION_SEED, dtype=torch.int64),
        num_heads=layer.num_heads,
        layer=layer.layer,
        **layer.attributes,
    )[0]
    return mixed.to(value.dtype)
