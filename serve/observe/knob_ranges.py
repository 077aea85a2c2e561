"""Knob values as a few ranges, so that metrics can be grouped by them: a metric keeps every label that it ever had."""

import math
from collections.abc import Mapping

from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue

NO_KNOBS = "none"
FLOAT_RANGES = 4  # of equal width, from 0 to the knob's highest value
WHOLE_BASE = 4  # whole numbers: a range ends at a power of this


def knob_ranges(knobs: Mapping[str, KnobValue]) -> str:
    """The ranges of a setting, such as `a=17-64,b=exact`.

    Args:
        knobs: a value for every knob of a model, each within its bounds.

    Returns:
        One range a knob, in the order given; `none` for a model without knobs.
    """
    return ",".join([f"{name}={knob_range(name, value)}" for name, value in knobs.items()]) or NO_KNOBS


def knob_range(name: str, value: KnobValue) -> str:
    """The range of one value: `exact`, or its lowest and highest value."""
    knob = KNOBS[name]
    if value == knob.exact:
        return "exact"
    if knob.dtype == "float":
        width = knob.high / FLOAT_RANGES
        index = max(0, min(FLOAT_RANGES, math.ceil(value / width)) - 1)  # a range includes its highest value
        return f"{index * width:g}-{(index + 1) * width:g}"
    highest = 1
    while highest < value:
        highest *= WHOLE_BASE
    lowest = highest // WHOLE_BASE + 1
    return f"{lowest}-{highest}" if lowest < highest else str(highest)
