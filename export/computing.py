"""Which attention operators compute what a model was trained with."""

from __future__ import annotations

from attenuator.ops import OPERATORS
from attenuator.ops.spec import WINDOW

__all__ = ["computing", "computing_windows"]


def computing(attention: str) -> tuple[str, ...]:
    """Keys of the operators that compute what a model trained with this attention was trained with."""
    return tuple(operator.key for operator in OPERATORS if operator.attention == attention)


def computing_windows(attention: str) -> tuple[str, ...]:
    """Those of them that compute it under a window, too."""
    windowed = {operator.key for operator in OPERATORS if WINDOW in operator.attributes}
    return tuple(key for key in computing(attention) if key in windowed)
