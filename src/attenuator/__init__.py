"""Attenuator: serves transformer text classifiers whose attention has an accuracy knob, set per request."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` takes as long to import as everything else before the Ctrl-C handler is set.
if TYPE_CHECKING:
    from typing import Any

    from attenuator.local import load as load

__version__ = "0.3.0"

# From 1.29 on, ONNX Runtime's wheels for Linux report models, errors and a machine's id to their maker, unless this is
# set before they are loaded. Who wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    """`attenuator.load`, whose imports (ONNX Runtime, NumPy) whoever imports something else shall not wait for."""
    if name != "load":
        raise AttributeError(f"module 'attenuator' has no attribute '{name}'")
    from attenuator.local import load

    return load
