"""LinformerAttention as an ONNX function."""

from __future__ import annotations

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.softmax.fallback import score_scale

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`LinformerAttention`, without the projected rows: q . (E K) = (q K^T) E^T, over keys of the same sequence."""
    rows = Rows(body, "key", "query")
    same = rows.same_sequence(body)
    query, key = (body.heads(body.padded(name)) for name in ("query", "key"))
    key_columns = columns(body, rows, "key_projection")
    value_columns = columns(body, rows, "value_projection") if "value_projection" in has else key_columns
    products = body.op("MatMul", body.op("Mul", query, score_scale(body, query)), transposed(body, key))
    scores = body.op("MatMul", body.op("Where", same, products, body.real(0.0)), transposed(body, key_columns))
    # Of each token: its share in the projected rows, by their weights.
    shares = body.op("MatMul", body.op("Softmax", scores, axis=-1), value_columns)
    mixed = body.op("MatMul", body.op("Where", same, shares, body.real(0.0)), body.heads(body.padded("value")))
    rows.cut(body, mixed, out="output")


def columns(body: Body, rows: Rows, projection: str) -> str:
    """`[num_heads * k, max_tokens]` to `[H, k, T + 1]`: the column of each row's place in its sequence."""
    num_heads = body.op("Unsqueeze", body.attribute("num_heads"), body.const((0,)))
    shape = body.op("Concat", num_heads, body.const((-1,)), body.size(projection, 1), axis=0)
    place = body.op("Sub", rows.position, rows.start)
    return body.op("Gather", body.op("Reshape", projection, shape), place, axis=2)


def transposed(body: Body, tensor: str) -> str:
    """The last two of three axes exchanged."""
    return body.op("Transpose", tensor, perm=[0, 2, 1])
