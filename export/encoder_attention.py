"""How the project's own encoder computes attention, for training and as the eager reference at export.

The operators' own `eager.py` works on padded tensors `[batch, heads, tokens, head_dim]`: clear to read and
differentiable. The exported graph has the operators in its place. An `eager.py` has `attend`, which is given the
queries as keys where the operator has no keys, and where it has trained weights of its own, as inputs of its spec:

`parameters(config)`, `shared_parameters(config)`: weights by input name, drawn; those of one layer, and those that all
layers have in common. Either may be missing, and either may leave weights out that are optional.

`SIZES`: one whole-number `Attribute` for each size of these weights that does not follow from the model's shape; what
`EncoderConfig.sizes` may set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from attenuator import training
from attenuator.errors import KnobOutOfRange
from attenuator.ops import OPERATORS, has_part, part
from attenuator.ops.knobs import check_knob
from attenuator.ops.spec import Attribute, Knob, Operator

__all__ = [
    "ATTENTIONS",
    "PackedLayout",
    "attributes_of",
    "check_knobs",
    "check_values",
    "drawn_weights",
    "has_keys",
    "sizes_of",
    "training_mix",
]

# Attributes that follow from the model's shape, from where a node stands in the graph and from the export's precision.
OF_THE_NODE = ("num_heads", "layer", "queries", "importance", "int8_products")

# What the encoder can be trained with, by key.
ATTENTIONS: dict[str, Operator] = {
    operator.key: operator for operator in OPERATORS if operator.attention and has_part(operator.key, "eager")
}


def has_keys(kind: str) -> bool:
    """Whether an attention has keys of their own; else its queries are its keys, and there is one projection for both.

    Args:
        kind: the attention's key in `ATTENTIONS`.
    """
    return any(item.name == "key" for item in ATTENTIONS[kind].inputs)


def attributes_of(kind: str) -> dict[str, Attribute]:
    """The attributes of an attention that a config may set, by name.

    Args:
        kind: the attention's key.
    """
    return {item.name: item for item in ATTENTIONS[kind].attributes if item.name not in OF_THE_NODE}


def sizes_of(kind: str) -> dict[str, Attribute]:
    """The sizes of an attention's trained weights that a config may set, by name."""
    return {item.name: item for item in getattr(part(kind, "eager"), "SIZES", ())}


def check_values(where: str, items: Mapping[str, Attribute], values: object) -> None:
    """Refuses values of what is not there, values that do not fit, and the absence of those without a default.

    Args:
        where: the field of the config that holds them.
        items: what may be set, by name.
        values: as the config has them.

    Raises:
        ValueError: names the value and what is allowed.
    """
    _check_names(where, items, values)
    assert isinstance(values, Mapping)
    for name, item in items.items():
        if name not in values and item.default is None:
            raise ValueError(f"{where} must name {name}: {item.allowed}")
        if name in values and not item.fits(values[name]):
            raise ValueError(f"{name} is {values[name]!r}, must be {item.allowed}")


def check_knobs(knobs: Iterable[Knob], values: object) -> None:
    """Refuses what is no knob, and values that a knob does not take.

    Raises:
        ValueError: names the value and what is allowed.
    """
    by_name = {knob.name: knob for knob in knobs}
    _check_names("knobs", by_name, values)
    assert isinstance(values, Mapping)
    for name, value in values.items():
        try:
            check_knob(by_name[name], value)
        except KnobOutOfRange as error:
            raise ValueError(str(error)) from None


def _check_names(where: str, items: Mapping[str, object], values: object) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} are {values!r}, must be values by name")
    unknown = next((name for name in values if name not in items), None)
    if unknown is not None:
        raise ValueError(f"{where} names {unknown!r}, must be of: {', '.join(items) or 'none'}")


def drawn_weights(config: Any, function: str) -> dict[str, nn.Parameter]:
    """An attention's own trained weights as they are before training.

    Args:
        config: the `EncoderConfig`.
        function: of the operator's `eager.py`: `parameters` or `shared_parameters`.

    Returns:
        By the name of the operator's input; none where it has no such function.

    Raises:
        ValueError: a name is no input of the operator.
    """
    draw = getattr(part(config.attention, "eager"), function, None)
    weights: dict[str, nn.Parameter] = {} if draw is None else draw(config)
    inputs = {item.name for item in ATTENTIONS[config.attention].inputs}
    if not inputs >= weights.keys():
        raise ValueError(
            f"{function} of {config.attention} draws {sorted(weights.keys() - inputs)}, which are no inputs"
        )
    return weights


@cache
def training_mix(kind: str) -> Callable[..., Tensor] | None:
    """What computes an attention with gradients on packed rows; None where there is nothing but PyTorch's own way.

    Args:
        kind: the attention's key.
    """
    package = f"{training.__name__}.{kind}"
    if not find_spec(package) or not find_spec(f"{package}.encoder"):
        return None
    mix: Callable[..., Tensor] = import_module(f"{package}.encoder").mix
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
