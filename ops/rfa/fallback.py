"""RfaAttention as an ONNX function."""

from __future__ import annotations

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.rfa.reference import INVERSE_SIGMA_HIGH, NORM_FLOOR

__all__ = ["build"]

MASKED = -1e30


def build(body: Body, has: list[str]) -> None:
    """`RfaAttention` at num_features 0: softmax over the cosines of queries and keys, over sigma^2."""
    rows = Rows(body, "key", "query")
    query, key = (unit_rows(body, body.heads(body.padded(name))) for name in ("query", "key"))
    inverse = body.op("Reciprocal", body.attribute("sigma"))
    if "inverse_sigma" in has:
        factors = body.op("Clip", "inverse_sigma", body.real(-INVERSE_SIGMA_HIGH), body.real(INVERSE_SIGMA_HIGH))
        inverse = body.op("Unsqueeze", body.op("Mul", factors, inverse), body.const((1, 2)))
    cosines = body.op("MatMul", query, body.op("Transpose", key, perm=[0, 2, 1]))
    scores = body.op("Mul", cosines, body.op("Mul", inverse, inverse))
    same = rows.same_sequence(body)
    weights = body.op("Softmax", body.op("Where", same, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    weights = body.op("Where", same, weights, body.real(0.0))
    rows.cut(body, body.op("MatMul", weights, body.heads(body.padded("value"))), out="output")


def unit_rows(body: Body, tensor: str) -> str:
    """Rows of length 1, zero rows left at zero."""
    norm = body.op("ReduceL2", tensor, body.const((-1,)), keepdims=1)
    return body.op("Div", tensor, body.op("Max", norm, body.real(NORM_FLOOR)))
