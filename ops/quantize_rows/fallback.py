"""QuantizeRows as an ONNX function."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from attenuator.ops.fallback import Body
from attenuator.ops.quantize_rows.rule import HIGH, TINY, ZERO_POINT

__all__ = ["build", "quantized"]


def build(body: Body, has: list[str]) -> None:
    """`QuantizeRows`."""
    quantized(body, "rows")


def quantized(body: Body, rows: str) -> None:
    """Gives `quantized` and `scale`; a row whose magnitudes add up to more than 3.4e38 counts as not finite."""
    magnitude = body.op("Abs", rows)
    last = body.const((-1,))
    high = body.op("ReduceMax", magnitude, last, keepdims=0)
    floored = body.op("Add", body.op("Mul", high, body.real(1 / HIGH)), body.real(TINY))
    # ReduceMax may lose a NaN; a sum does not. Adds 0 to the scale of a finite row.
    check = body.op("Mul", body.op("ReduceSum", magnitude, last, keepdims=0), body.real(0.0))
    scale = body.op("Add", floored, check, out="scale")
    middle: onnx.TensorProto = helper.make_tensor("value", TensorProto.UINT8, [1], [ZERO_POINT])
    zero_points = body.op("ConstantOfShape", body.op("Shape", scale), value=middle)
    body.op("QuantizeLinear", rows, scale, zero_points, axis=0, out="quantized")
