"""Checkpoints of transformers that were trained with one of the project's attentions in place of their own.

`attenuator.training` writes into the config what the model was trained with: the operator's key, attributes and knobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from attenuator import training
from attenuator.errors import ExportError
from attenuator.export.architectures import Architecture
from attenuator.export.computing import computing
from attenuator.export.eager import eager_transformers
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.ops import DOMAIN
from attenuator.ops.spec import Attribute, Knob

__all__ = ["as_trained"]


def as_trained(architecture: Architecture, config: Any) -> Architecture:
    """The family's layout with the attention that the checkpoint was trained with.

    Args:
        architecture: of the family.
        config: of the checkpoint.

    Raises:
        ExportError: the config names no operator that models can be trained with, or a value that it does not take.
    """
    stored = getattr(config, DOMAIN, None)
    if stored is None:
        return architecture
    trainable = [key for key in OPERATOR_BY_KEY if find_spec(f"{training.__name__}.{key}")]
    key = stored.get(training.ATTENTION) if isinstance(stored, dict) else None
    if key not in trainable:
        raise ExportError(
            f"{DOMAIN}.{training.ATTENTION} in the config is {key!r}, must be one of: {', '.join(trainable)}"
        )
    operator = OPERATOR_BY_KEY[key]
    interface: Any = import_module(f"{training.__name__}.{key}.attention_interface")

    def eager(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
        with interface.expected(model):
            return eager_transformers(model, token_ids, type_ids)

    attributes = values(stored, operator.attributes)
    knobs = values(stored, operator.knobs)
    return replace(
        architecture,
        operators=lambda _: computing(operator.attention),
        attributes=lambda _: attributes,
        knob_defaults=lambda _: knobs,
        eager=eager,
    )


def values(stored: dict[str, Any], items: Iterable[Attribute | Knob]) -> dict[str, Any]:
    """Of the attributes or knobs those that the config has a value for.

    Raises:
        ExportError: a value that the operator does not take.
    """
    present = [item for item in items if item.name in stored]
    for item in present:
        value = stored[item.name]
        if isinstance(item, Attribute):
            fits, allowed = item.fits(value), item.allowed
        else:
            is_whole = item.dtype == "int32"
            kinds, kind = ((int,), "a whole number") if is_whole else ((int, float), "a number")
            fits = type(value) in kinds and item.low <= value <= item.high
            allowed = f"{kind} in [{item.low:g}, {item.high:g}]"
        if not fits:
            raise ExportError(f"{DOMAIN}.{item.name} in the config is {value!r}, must be {allowed}")
    return {item.name: stored[item.name] for item in present}
