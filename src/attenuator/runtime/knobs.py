"""Knob and seed checks, all derived from the manifest's knob rows."""

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest, KnobOutOfRange, UnknownField
from attenuator.ops.spec import SEED_HIGH

KnobValue = int | float


def describe(knob: BundleKnob) -> str:
    """What values the knob takes, in words, such as `a whole number from 0 to 512`."""
    kind = "a whole number" if knob.dtype == "int32" else "a number"
    return f"{kind} from {knob.low:g} to {knob.high:g}"


def check_knob(knob: BundleKnob, value: object) -> KnobValue:
    """Checks one value.

    Args:
        knob: the manifest's row.
        value: what the caller gave.

    Returns:
        The value as `int` (int32) or `float`.

    Raises:
        KnobOutOfRange: of the wrong type (booleans and strings are not numbers), not finite, or out of range.
    """
    allowed = describe(knob)
    number: KnobValue
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KnobOutOfRange(f"{knob.name} is {shown(value)}, must be {allowed}", param=knob.name, allowed=allowed)
    if isinstance(value, float) and knob.dtype == "int32":
        raise KnobOutOfRange(f"{knob.name} is {value!r}, must be {allowed}", param=knob.name, allowed=allowed)
    number = value
    if (isinstance(value, float) and not math.isfinite(value)) or not knob.low <= number <= knob.high:
        raise KnobOutOfRange(f"{knob.name} is {shown(value)}, must be {allowed}", param=knob.name, allowed=allowed)
    return int(number) if knob.dtype == "int32" else float(number)


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
    if isinstance(value, int) and abs(value) > 10**18:
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
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SEED_HIGH:
        raise InvalidRequest(f"seed is {shown(value)}, must be {allowed}", param="seed", allowed=allowed)
    return value


class KnobTable:
    """The knobs of one bundle.

    Attributes:
        model: the bundle's name, for sentences.
        rows: the manifest's rows by knob name.
    """

    def __init__(self, model: str, rows: Sequence[BundleKnob]) -> None:
        self.model = model
        self.rows = {row.name: row for row in rows}

    @property
    def names(self) -> list[str]:
        """Names of the knobs, in the manifest's order."""
        return list(self.rows)

    def defaults(self) -> dict[str, KnobValue]:
        """The bundle's default of every knob."""
        return {name: check_knob(row, _typed(row, row.default)) for name, row in self.rows.items()}

    def exact(self) -> dict[str, KnobValue]:
        """The exact value of every knob."""
        return {name: check_knob(row, _typed(row, row.exact)) for name, row in self.rows.items()}

    def check(self, given: Mapping[str, object]) -> dict[str, KnobValue]:
        """Checks what a caller set and fills in the rest.

        Args:
            given: value by knob name, as the caller gave it.

        Returns:
            A value for every knob of the bundle: the caller's or the default.

        Raises:
            UnknownField: the bundle has no such knob.
            KnobOutOfRange: wrong type or out of range.
        """
        for name in given:
            if name not in self.rows:
                raise self._unknown(name)
        return {
            name: check_knob(row, given[name] if name in given else _typed(row, row.default))
            for name, row in self.rows.items()
        }

    def _unknown(self, name: str) -> UnknownField:
        has = f"it has {' and '.join(self.names)}" if self.rows else "it has none"
        close = get_close_matches(name, self.names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return UnknownField(
            f"model '{self.model}' has no knob {name}: {has}{hint}",
            param=name,
            allowed=", ".join(f"{row.name}: {describe(row)}" for row in self.rows.values()) or "no knob",
        )


def _typed(row: BundleKnob, value: float) -> KnobValue:
    return int(value) if row.dtype == "int32" else float(value)
