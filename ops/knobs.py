"""Checks of what a caller sets: knob values and seeds, the same in a client before sending and in the service after."""

import math
from collections.abc import Mapping
from typing import Literal, Protocol

from attenuator.errors import InvalidRequest, KnobOutOfRange
from attenuator.ops.spec import SEED_HIGH

KnobValue = int | float
Knobs = Mapping[str, KnobValue]

DEFAULT_SEED = 0  # where a caller sets none, so that equal requests get equal answers


class Bounded(Protocol):
    """What a check needs to know of a knob: an operator's `Knob`, or a bundle's row with narrower bounds."""

    @property
    def name(self) -> str:
        """The word for it."""

    @property
    def dtype(self) -> Literal["int32", "float"]:
        """The type of its values."""

    @property
    def low(self) -> float:
        """Smallest value."""

    @property
    def high(self) -> float:
        """Largest value."""


class Ordered(Bounded, Protocol):
    """What it takes to order a knob's values by accuracy."""

    @property
    def exact(self) -> float:
        """The value without approximation."""

    @property
    def accuracy(self) -> Literal["rises", "falls"]:
        """Which way accuracy moves as the value grows, the exact value aside."""


def describe(knob: Bounded) -> str:
    """What values the knob takes, in words, such as `a whole number from 0 to 512`."""
    kind = "a whole number" if knob.dtype == "int32" else "a number"
    return f"{kind} from {knob.low:g} to {knob.high:g}"


def check_knob(knob: Bounded, value: object) -> KnobValue:
    """Checks one value.

    Args:
        knob: its type and bounds.
        value: what the caller gave.

    Returns:
        The value as `int` (int32; 8.0 counts as 8) or `float`.

    Raises:
        KnobOutOfRange: of the wrong type (booleans and strings are not numbers), not finite, or out of range.
    """
    number = None if isinstance(value, bool) or not isinstance(value, int | float) else value
    if number is not None and knob.dtype == "int32":
        number = whole_number(number)
    if number is None or not knob.low <= number <= knob.high:  # NaN is not in any range
        allowed = describe(knob)
        raise KnobOutOfRange(f"{knob.name} is {shown(value)}, must be {allowed}", param=knob.name, allowed=allowed)
    return int(number) if knob.dtype == "int32" else float(number)


def read_knob_values(text: str) -> dict[str, float]:
    """Reads what a command line says about several knobs: `name=0.5,other=0.2`; nothing at all for none.

    Raises:
        ValueError: a part is no such pair, or a name is there twice; names and values are not checked against a knob.
    """
    values: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name in values:
            raise ValueError(f"'{name[:80]}' is there twice, must be different knobs")
        try:
            values[name] = float(value)
        except ValueError:
            raise ValueError(f"'{part[:80]}' must be a knob's name and a number, such as keep=0.5") from None
    return values


def clamped(knob: Bounded, value: float) -> KnobValue:
    """The nearest value within a knob's bounds; `value` is one of a knob of that name with wider ones."""
    return check_knob(knob, min(max(value, knob.low), knob.high))


def accuracy_rank(knob: Ordered, value: float) -> float:
    """Orders a knob's values: the more accurate one has the higher rank, the exact one the highest."""
    if value == knob.exact:
        return math.inf
    return value if knob.accuracy == "rises" else -value


def whole_number(value: object) -> int | None:
    """The whole number that a value is, as JSON Schema counts: 2.0 is one; 2.5, true and "2" are not (None)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def shown(value: object) -> str:
    """A caller's value, short enough for a sentence."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number with more than 18 digits"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


SEED_ALLOWED = f"a whole number from 0 to {SEED_HIGH}, or null to have one drawn"


def check_seed(value: object) -> int:
    """Checks a seed.

    Args:
        value: what the caller gave.

    Returns:
        The seed.

    Raises:
        InvalidRequest: not a whole number from 0 to 2^53 - 1.
    """
    seed = whole_number(value)
    if seed is None or not 0 <= seed <= SEED_HIGH:
        raise InvalidRequest(f"seed is {shown(value)}, must be {SEED_ALLOWED}", param="seed", allowed=SEED_ALLOWED)
    return seed
