"""Attenuator: serves transformer text classifiers whose attention has an accuracy knob, set per request."""

__version__ = "0.2.0"
