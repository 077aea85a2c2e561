"""SoftmaxAttention as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows

__all__ = ["build", "importance", "score_scale", "softmax_rows", "softmax_weights"]

MASKED = -1e30


def softmax_weights(body: Body, visible: str) -> str:
    """Softmax weights `[H, rows + 1, T + 1]` of the keys that each row sees, bool `[rows + 1, T + 1]`; 0 elsewhere."""
    query, key = body.heads(body.padded("query")), body.heads(body.padded("key"))
    scores = body.op(
        "MatMul", body.op("Mul", query, score_scale(body, query)), body.op("Transpose", key, perm=[0, 2, 1])
    )
    weights = body.op("Softmax", body.op("Where", visible, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    return body.op("Where", visible, weights, body.real(0.0))


def softmax_rows(body: Body, value: str, has: list[str]) -> None:
    """Exact softmax attention over `value` `[T + 1, H * D]`, written to `output`, and `importance` where it is one."""
    rows = Rows(body, "key", "query", "positions" if "positions" in has else None)
    visible = rows.visible(body)
    weights = softmax_weights(body, visible)
    if "unmerged_cu_seqlens" in has:
        weights = counted(body, weights, rows.stands_for(body), visible)
    rows.cut(body, body.op("MatMul", weights, body.heads(value)), out="output")
    if "importance" in body.outputs:
        importance(body, rows, weights)


def counted(body: Body, weights: str, times: str, visible: str) -> str:
    """Softmax weights `[H, rows + 1, T + 1]` where key j counts `times[j]` times, 0 where a row does not see it."""
    several = body.op("Mul", weights, times)
    total = body.op("ReduceSum", several, body.const((2,)))
    return body.op("Where", visible, body.op("Div", several, total), body.real(0.0))


def score_scale(body: Body, query: str) -> str:
    """The node's `scale`, or 1 / sqrt(head_dim) where that is 0, for queries `[H, rows + 1, head_dim]`."""
    width = body.op("Cast", body.size(query, 2), to=TensorProto.FLOAT)
    given = body.attribute("scale")
    standard = body.op("Reciprocal", body.op("Sqrt", width))
    return body.op("Where", body.op("Equal", given, body.real(0.0)), standard, given)


def importance(body: Body, rows: Rows, weights: str) -> None:
    """Of `weights` `[H, rows + 1, T + 1]`, each key's for the first row of its sequence, or the largest; over heads."""
    last = body.const((-1,))
    first_query = body.op("Equal", rows.query_position, body.op("Gather", rows.start, rows.query_position))
    chosen = body.op("Or", body.op("Unsqueeze", first_query, body.const((1,))), body.is_choice("importance", "maximum"))
    heads = body.op("ReduceMax", body.op("Where", chosen, weights, body.real(0.0)), body.const((1,)), keepdims=0)
    keys = body.op("ReduceSum", heads, body.const((0,)), keepdims=0)
    body.op("Slice", keys, body.const((0,)), last, body.const((0,)), out="importance")


def build(body: Body, has: list[str]) -> None:
    """`SoftmaxAttention`."""
    softmax_rows(body, body.padded("value"), has)
