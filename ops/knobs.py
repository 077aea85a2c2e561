"""Checks of what a caller sets: knob values and seeds, the same in a client before sending and in the service after."""

from collections.abc import Mapping
from typing import Literal, Protocol

from attenuator.errors import InvalidRequest, KnobOutOfRange
from attenuator.ops.spec import SEED_HIGH

KnobValue = int | float

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
    allowed = describe(knob)
    number = None if isinstance(value, bool) or not isinstance(value, int | float) else value
    if number is not None and knob.dtype == "int32":
        number = whole_number(number)
    if number is None or not knob.low <= number <= knob.high:  # NaN is not in any range
        raise KnobOutOfRange(f"{knob.name} is {shown(value)}, must be {allowed}", param=knob.name, allowed=allowed)
    return int(number) if knob.dtype == "int32" else float(number)


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


def check_seed(value: object) -> int:
    """Checks a seed.

    Args:
        value: what the caller gave.

    Returns:
        The seed.

    Raises:
        InvalidRequest: not a whole number from 0 to 2^53 - 1.
    """
    allowed = f"a whole number from 0 to {SEED_HIGH}"
    seed = whole_number(value)
    if seed is None or not 0 <= seed <= SEED_HIGH:
        raise InvalidRequest(f"seed is {shown(value)}, must be {allowed}", param="seed", allowed=allowed)
    return seed
