"""LinearAttention as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows

__all__ = ["build"]

# Added to a denominator of 0, which an empty sequence's row has: the quotient is 0.
TINY = 1e-38


def build(body: Body, has: list[str]) -> None:
    """`LinearAttention`, with one weight for each query and key: phi(q_i) . phi(k_j), 0 in other sequences."""
    rows = Rows(body, "key", "query")
    query, key = (features(body, body.heads(body.padded(name))) for name in ("query", "key"))
    scores = body.op("MatMul", query, body.op("Transpose", key, perm=[0, 2, 1]))
    weights = body.op("Mul", scores, body.op("Cast", rows.same_sequence(body), to=TensorProto.FLOAT))
    mixed = body.op("MatMul", weights, body.heads(body.padded("value")))
    total = body.op("ReduceSum", weights, body.const((-1,)), keepdims=1)
    rows.cut(body, body.op("Div", mixed, body.op("Max", total, body.real(TINY))), out="output")


def features(body: Body, tensor: str) -> str:
    """elu(x) + 1, said as max(x, 0) + exp(min(x, 0))."""
    zero = body.real(0.0)
    return body.op("Add", body.op("Max", tensor, zero), body.op("Exp", body.op("Min", tensor, zero)))
