"""SoftmaxAttention as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows

__all__ = ["build", "softmax_rows"]

MASKED = -1e30


def softmax_rows(body: Body, value: str) -> None:
    """Exact softmax attention over `value` `[T + 1, H * D]`, written to `output`."""
    rows = Rows(body, "key", "query")
    query, key = body.heads(body.padded("query")), body.heads(body.padded("key"))
    width = body.op("Cast", body.size(query, 2), to=TensorProto.FLOAT)
    attribute_scale = body.attribute("scale")
    default_scale = body.op("Reciprocal", body.op("Sqrt", width))
    scale = body.op("Where", body.op("Equal", attribute_scale, body.real(0.0)), default_scale, attribute_scale)
    scores = body.op("MatMul", body.op("Mul", query, scale), body.op("Transpose", key, perm=[0, 2, 1]))
    visible = rows.visible(body)
    weights = body.op("Softmax", body.op("Where", visible, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    weights = body.op("Where", visible, weights, body.real(0.0))
    rows.cut(body, body.op("MatMul", weights, body.heads(value)), out="output")


def build(body: Body, has: list[str]) -> None:
    """`SoftmaxAttention`."""
    softmax_rows(body, body.padded("value"))
