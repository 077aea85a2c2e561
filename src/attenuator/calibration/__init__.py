"""Agreement and time of a bundle's settings: measured by `attenuator calibrate`, read by the service to serve goals."""

from attenuator.calibration.goals import (
    cheapest,
    default_setting,
    how_to_calibrate,
    keeping_default,
    out_of_reach,
    reaching,
)
from attenuator.calibration.schema import Calibration, Setting, read_calibration

__all__ = [
    "Calibration",
    "Setting",
    "cheapest",
    "default_setting",
    "how_to_calibrate",
    "keeping_default",
    "out_of_reach",
    "reaching",
    "read_calibration",
]
