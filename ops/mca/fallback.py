"""McaAttention as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto, helper

from attenuator.ops.fallback import Body
from attenuator.ops.softmax.fallback import softmax_rows

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`McaAttention` at alpha 0: the value projection is computed wholly, so all its multiply-adds are spent."""
    value = body.op("Add", body.op("MatMul", body.padded("hidden"), "value_weight"), "value_bias")
    softmax_rows(body, value, has)
    shape = body.size("alpha", 0)
    one = helper.make_tensor("value", TensorProto.FLOAT, (1,), [1.0])
    body.op("ConstantOfShape", shape, value=one, out="value_flops")
