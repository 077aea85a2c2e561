"""LongShortAttention at its trained window as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.softmax.fallback import MASKED, score_scale

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`LongShortAttention`: every row's own sequence is chosen among the keys and the mixtures of all sequences."""
    rows = Rows(body, "key", "query")
    query, key, value = (body.heads(body.padded(name)) for name in ("query", "key", "value"))
    of_sequence = sequences(body, rows)
    mixing = mixtures(body, key, of_sequence)
    keys = body.op("Concat", normed(body, key, "local_key_norm"), mixed(body, mixing, key, "key"), axis=1)
    values = body.op("Concat", normed(body, value, "local_value_norm"), mixed(body, mixing, value, "value"), axis=1)
    near = body.op("LessOrEqual", body.op("Abs", rows.distance(body)), body.attribute("trained_window"))
    near = body.op("And", near, rows.same_sequence(body))
    visible = body.op("Concat", near, own_mixtures(body, rows, of_sequence, mixing), axis=1)
    scaled = body.op("Mul", query, score_scale(body, query))
    scores = body.op("MatMul", scaled, body.op("Transpose", keys, perm=[0, 2, 1]))
    weights = body.op("Softmax", body.op("Where", visible, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    weights = body.op("Where", visible, weights, body.real(0.0))
    rows.cut(body, body.op("MatMul", weights, values), out="output")


def sequences(body: Body, rows: Rows) -> str:
    """Which rows each sequence has, bool `[B + 1, T + 1]`; the last is the appended row's."""
    count = body.op("Squeeze", body.size("cu_seqlens", 0), body.const((0,)))
    numbers = body.op("Range", body.const(0), count, body.const(1))
    return body.op("Equal", body.op("Unsqueeze", numbers, body.const((1,))), rows.sequence)


def per_head(body: Body, tensor: str) -> str:
    """`[H * r, D]` to `[H, r, D]`."""
    num_heads = body.op("Unsqueeze", body.attribute("num_heads"), body.const((0,)))
    shape = body.op("Concat", num_heads, body.const((-1,)), body.size(tensor, 1), axis=0)
    return body.op("Reshape", tensor, shape)


def mixtures(body: Body, key: str, of_sequence: str) -> str:
    """P of every sequence, `[H, B + 1, r, T + 1]`: softmax over its own rows, 0 elsewhere."""
    projection = per_head(body, "dynamic_projection")
    scores = body.op("MatMul", projection, body.op("Transpose", key, perm=[0, 2, 1]))
    here = body.op("Unsqueeze", of_sequence, body.const((1,)))
    masked = body.op("Where", here, body.op("Unsqueeze", scores, body.const((1,))), body.real(MASKED))
    return body.op("Where", here, body.op("Softmax", masked, axis=-1), body.real(0.0))


def mixed(body: Body, mixing: str, rows: str, of: str) -> str:
    """LN_G of P^T times keys or values `[H, T + 1, D]`: `[H, (B + 1) * r, D]`."""
    product = body.op("MatMul", mixing, body.op("Unsqueeze", rows, body.const((1,))))
    shape = body.op("Concat", body.const((0,)), body.const((-1,)), body.size(rows, 2), axis=0)
    return normed(body, body.op("Reshape", product, shape), f"global_{of}_norm")


def normed(body: Body, rows: str, norm: str) -> str:
    """Layer norm of `[H, rows, D]` by factors and terms `[2, H * D]`."""
    last = body.const((-1,))
    centred = body.op("Sub", rows, body.op("ReduceMean", rows, last))
    variance = body.op("ReduceMean", body.op("Mul", centred, centred), last)
    deviation = body.op("Sqrt", body.op("Add", variance, body.attribute("epsilon")))
    # [2, H * D] to [H, 2, D], then each of the two rows.
    by_head = body.heads(norm)
    factor = body.op("Slice", by_head, body.const((0,)), body.const((1,)), body.const((1,)))
    term = body.op("Slice", by_head, body.const((1,)), body.const((2,)), body.const((1,)))
    return body.op("Add", body.op("Mul", body.op("Div", centred, deviation), factor), term)


def own_mixtures(body: Body, rows: Rows, of_sequence: str, mixing: str) -> str:
    """Whether a row sees a mixture, bool `[rows + 1, (B + 1) * r]`: those of its sequence, unless that is empty."""
    tokens = body.op("ReduceSum", body.op("Cast", of_sequence, to=TensorProto.INT64), body.const((1,)), keepdims=0)
    count = body.op("Squeeze", body.size("cu_seqlens", 0), body.const((0,)))
    numbers = body.op("Range", body.const(0), count, body.const(1))
    own = body.op("Equal", body.op("Unsqueeze", rows.query_sequence, body.const((1,))), numbers)
    own = body.op("And", own, body.op("Greater", tokens, body.const(0)))
    each = body.op("Concat", body.size("query", 0), body.size(mixing, 1), body.size(mixing, 2), axis=0)
    one_more = body.op("Add", each, body.const((1, 0, 0)))
    wide = body.op("Expand", body.op("Unsqueeze", own, body.const((2,))), one_more)
    return body.op("Reshape", wide, body.const((0, -1)))
