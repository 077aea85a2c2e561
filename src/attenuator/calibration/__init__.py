"""What a bundle's settings are worth: measured by `attenuator calibrate`, read by the service to serve goals."""

from attenuator.calibration.schema import Calibration, read_calibration

__all__ = ["Calibration", "read_calibration"]
