"""ReformerAttention as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.reformer.reference import NORM_FLOOR

__all__ = ["build"]

MASKED = -1e30
ITSELF = -1e29  # above what is masked, so that a row that sees nothing else sees itself


def build(body: Body, has: list[str]) -> None:
    """`ReformerAttention` at num_rounds 0: exact softmax attention with shared queries and keys."""
    rows = Rows(body, "query")
    rows.length, rows.query_sequence = body.size("query", 0), rows.sequence
    query, value = (body.heads(body.padded(name)) for name in ("query", "value"))
    norm = body.op("ReduceL2", query, body.const((-1,)), keepdims=1)
    key = body.op("Div", query, body.op("Max", norm, body.real(NORM_FLOOR)))
    width = body.op("Cast", body.size(query, 2), to=TensorProto.FLOAT)
    given = body.attribute("scale")
    standard = body.op("Reciprocal", body.op("Sqrt", width))
    scale = body.op("Where", body.op("Equal", given, body.real(0.0)), standard, given)
    scores = body.op("MatMul", body.op("Mul", query, scale), body.op("Transpose", key, perm=[0, 2, 1]))
    itself = body.op("Equal", body.op("Unsqueeze", rows.position, body.const((1,))), rows.position)
    scores = body.op("Where", itself, body.real(ITSELF), scores)
    scores = body.op("Where", rows.same_sequence(body), scores, body.real(MASKED))
    rows.cut(body, body.op("MatMul", body.op("Softmax", scores, axis=-1), value), out="output")
