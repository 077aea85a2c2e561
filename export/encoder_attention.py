"""How the project's own encoder computes attention, for training and as the eager reference at export.

The operators' own `eager.py` works on padded tensors `[batch, heads, tokens, head_dim]`: clear to read and
differentiable. The exported graph has the operators in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from attenuator import training
from attenuator.ops import OPERATORS, has_part
from attenuator.ops.spec import Operator

__all__ = ["ATTENTIONS", "PackedLayout", "training_mix"]

# What the encoder can be trained with, by key.
ATTENTIONS: dict[str, Operator] = {
    operator.key: operator for operator in OPERATORS if operator.attention and has_part(operator.key, "eager")
}


@cache
def training_mix(kind: str) -> Callable[..., Tensor | None] | None:
    """What computes an attention with gradients on packed rows; None where there is nothing but PyTorch's own way.

    Args:
        kind: the attention's key.
    """
    package = f"{training.__name__}.{kind}"
    if not find_spec(package) or not find_spec(f"{package}.encoder"):
        return None
    mix: Callable[..., Tensor | None] = import_module(f"{package}.encoder").mix
    return mix


class PackedLayout:
    """Where the rows of a packed batch `[T, ...]` sit in a padded one `[B, longest, ...]`.

    Args:
        cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        lengths = torch.diff(cu_seqlens.long())
        self.batch = int(lengths.numel())
        self.longest = int(lengths.max()) if self.batch else 0
        rows = torch.arange(self.batch, device=lengths.device).repeat_interleave(lengths)
        inside = torch.arange(rows.numel(), device=lengths.device) - cu_seqlens.long()[rows]
        self.slots = rows * self.longest + inside
        self.is_token = torch.arange(self.longest, device=lengths.device) < lengths[:, None]

    def pad(self, packed: Tensor, heads: int) -> Tensor:
        """`[T, heads * head_dim]` to `[B, heads, longest, head_dim]`, zeros behind the end of a sequence."""
        padded = packed.new_zeros(self.batch * self.longest, packed.shape[1]).index_copy(0, self.slots, packed)
        return padded.view(self.batch, self.longest, heads, packed.shape[1] // heads).transpose(1, 2)

    def pack(self, padded: Tensor) -> Tensor:
        """`[B, heads, longest, head_dim]` to `[T, heads * head_dim]`."""
        flat = padded.transpose(1, 2).reshape(self.batch * self.longest, padded.shape[1] * padded.shape[3])
        return flat.index_select(0, self.slots)
