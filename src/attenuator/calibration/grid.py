"""The settings that are measured: each knob from its exact value down, in fewer steps where there are several."""

import itertools
import math
from collections.abc import Iterable, Sequence

from attenuator.bundle import BundleKnob

# Values of a knob besides the exact one and the default, by how many knobs there are; all combinations are measured.
VALUES = {1: 8, 2: 4}
FEWEST_VALUES = 2
RATIO_DIGITS = 2  # people read them
# Values of a whole number, whose exact value stands apart, are spread from this share of its range on.
SMALLEST_SHARE = 1 / 128


def values(knob: BundleKnob, count: int) -> list[float]:
    """Values of one knob to measure.

    Args:
        knob: its bounds, its default and its exact value.
        count: how many besides the exact value and the default.

    Returns:
        The exact value, then the others from the most to the least accurate.
    """
    spread = _powers(knob, count) if knob.dtype == "int32" else _steps(knob, count)
    return [knob.exact, *sorted({*spread, knob.default} - {knob.exact}, reverse=knob.accuracy == "rises")]


def _powers(knob: BundleKnob, count: int) -> Iterable[float]:
    """Whole numbers whose logarithms are evenly spaced."""
    low = max(1, knob.low, math.floor(knob.high * SMALLEST_SHARE))
    return (float(round(low * (knob.high / low) ** (step / (count - 1)))) for step in range(count))


def _steps(knob: BundleKnob, count: int) -> Iterable[float]:
    """Numbers from the exact value to the other end: evenly spaced, or with even ratios where both are above 0.

    A share of work that halves wins twice the time wherever it starts, so even ratios are what a choice needs.
    """
    end = knob.low if knob.exact > knob.low else knob.high
    if end > 0 and knob.exact > 0:
        return (round(knob.exact * (end / knob.exact) ** (step / count), RATIO_DIGITS) for step in range(1, count + 1))
    return (round(knob.exact + step / count * (end - knob.exact), 6) for step in range(1, count + 1))


def grid(knobs: Sequence[BundleKnob]) -> list[dict[str, float]]:
    """The settings to measure: value by knob name, the exact setting first, the bundle's defaults among them."""
    count = VALUES.get(len(knobs), FEWEST_VALUES)
    names = [knob.name for knob in knobs]
    columns = [values(knob, count) for knob in knobs]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*columns)]
