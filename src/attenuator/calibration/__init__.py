"""What a bundle's settings are worth: measured by `attenuator calibrate`, read by the service to serve goals."""

from attenuator.calibration.goals import cheapest, reaching
from attenuator.calibration.schema import Calibration, Setting, read_calibration

__all__ = ["Calibration", "Setting", "cheapest", "reaching", "read_calibration"]
