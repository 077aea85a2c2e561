"""Attenuator: serves transformer text classifiers whose attention has an accuracy knob, set per request."""

import os

__version__ = "0.3.0"

# From 1.29 on, ONNX Runtime's wheels for Linux report models, errors and a machine's id to their maker, unless this is
# set before they are loaded. Who wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
