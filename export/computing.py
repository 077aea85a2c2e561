"""Which attention operators compute what a model was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import WINDOW

__all__ = ["computing", "computing_encoder", "computing_windows", "lacking", "trained_with"]

_BY_KEY = {operator.key: operator for operator in OPERATORS}
_CONVOLUTION = "conv_weight"  # the input of operators that add one


def computing(attention: str) -> tuple[str, ...]:
    """Keys of the operators that compute what a model trained with this attention was trained with."""
    return tuple(operator.key for operator in OPERATORS if operator.attention == attention)


def computing_windows(attention: str) -> tuple[str, ...]:
    """Those of them that compute it under a window, too."""
    return tuple(key for key in computing(attention) if WINDOW in _BY_KEY[key].attributes)


def computing_encoder(config: Any) -> tuple[str, ...]:
    """Those that compute what an own encoder was trained with, its convolution where it has one.

    Args:
        config: an `EncoderConfig`.
    """
    keys = computing(_BY_KEY[config.attention].attention)
    if not config.conv_size:
        return keys
    return tuple(key for key in keys if any(item.name == _CONVOLUTION for item in _BY_KEY[key].inputs))


def trained_with(keys: Sequence[str]) -> str:
    """The attention that a model was trained with, for sentences.

    Args:
        keys: of the operators that compute it. Where none of them is what they come to at their exact values, the model
            was trained with the first one itself, as a Nystromformer was.
    """
    attention = _BY_KEY[keys[0]].attention
    return attention if attention in keys else keys[0]


def lacking(key: str) -> str:
    """What a model trained with softmax attention does not have for an attention, for sentences; empty for nothing.

    Args:
        key: of its operator.
    """
    inputs = {item.name for item in _BY_KEY[key].inputs}
    if "key" not in inputs:
        return "its queries are its keys, one projection where the model has two"
    known = {
        item.name for operator in OPERATORS if operator.attention == BASELINE.attention for item in operator.inputs
    }
    own = [item.name for item in _BY_KEY[key].inputs if not (item.optional or item.host) and item.name not in known]
    return f"it has trained weights of its own, {', '.join(own)}" if own else ""
