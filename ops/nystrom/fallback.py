"""NystromAttention as an ONNX function."""

from __future__ import annotations

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.softmax.fallback import softmax_weights
from attenuator.ops.yoso.fallback import convolution

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`NystromAttention` at num_landmarks 0: exact softmax attention, and the convolution beside it."""
    rows = Rows(body, "key", "query")
    same = rows.same_sequence(body)
    value = body.heads(body.padded("value"))
    mixed = body.op("MatMul", softmax_weights(body, same), value)
    if "conv_weight" in has:
        mixed = body.op("Add", mixed, convolution(body, rows, same, value))
    rows.cut(body, mixed, out="output")
