"""RelativeAttention as an ONNX function."""

from __future__ import annotations

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.softmax.fallback import MASKED, counted, importance, score_scale

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`RelativeAttention`: products, their terms for the distance, softmax over the own sequence."""
    rows = Rows(body, "key", "query", "positions" if "positions" in has else None)
    query, key = body.heads(body.padded("query")), body.heads(body.padded("key"))
    scores = body.op("MatMul", query, body.op("Transpose", key, perm=[0, 2, 1]))
    tables = [name for name in ("pos_key", "pos_query", "bias") if name in has]
    places = table_rows(body, rows) if tables else ""
    if "pos_key" in has:
        scores = body.op("Add", scores, chosen(body, query, "pos_key", places))
    if "pos_query" in has:
        turned = body.op("Transpose", places, perm=[1, 0])
        by_key = chosen(body, key, "pos_query", turned)
        scores = body.op("Add", scores, body.op("Transpose", by_key, perm=[0, 2, 1]))
    scores = body.op("Mul", scores, score_scale(body, query))
    if "bias" in has:
        bias = body.op("Gather", "bias", places, axis=0)
        scores = body.op("Add", scores, body.op("Transpose", bias, perm=[2, 0, 1]))
    visible = rows.same_sequence(body)
    weights = body.op("Softmax", body.op("Where", visible, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    weights = body.op("Where", visible, weights, body.real(0.0))
    if "unmerged_cu_seqlens" in has:
        weights = counted(body, weights, rows.stands_for(body), visible)
    rows.cut(body, body.op("MatMul", weights, body.heads(body.padded("value"))), out="output")
    if "importance" in body.outputs:
        importance(body, rows, weights)


def table_rows(body: Body, rows: Rows) -> str:
    """int64 `[rows + 1, T + 1]`: the row of the tables for the distance i - j, any row in other sequences."""
    distance = body.op("Neg", rows.distance(body))
    size = body.size("buckets", 0)
    reach = body.op("Div", size, body.const((2,)))
    near = body.op("Max", body.op("Min", distance, reach), body.op("Neg", reach))
    return body.op("Gather", "buckets", body.op("Add", near, reach), axis=0)


def chosen(body: Body, tensor: str, table: str, places: str) -> str:
    """`[H, m, n]`: `tensor` `[H, m, D]` times the rows of the table `[R, H * D]` that `places` `[m, n]` names."""
    products = body.op("MatMul", tensor, body.op("Transpose", body.heads(table), perm=[0, 2, 1]))
    shape = body.op("Concat", body.size(tensor, 0), body.size(places, 0), body.size(places, 1), axis=0)
    return body.op("GatherElements", products, body.op("Expand", places, shape), axis=2)
