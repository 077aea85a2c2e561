"""PerformerAttention as an ONNX function."""

from __future__ import annotations

from attenuator.ops.fallback import Body
from attenuator.ops.softmax.fallback import softmax_rows

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`PerformerAttention` at num_features 0: softmax attention."""
    softmax_rows(body, body.padded("value"), has)
