"""YosoAttention as an ONNX function."""

from __future__ import annotations

import math

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows
from attenuator.ops.softmax.fallback import importance
from attenuator.ops.yoso.reference import NORM_FLOOR, SUM_FLOOR

__all__ = ["build"]


def unit_rows(body: Body, tensor: str, floor: str) -> str:
    """Rows over max(their norm, a floor): of length 1, zero rows left at zero."""
    norm = body.op("ReduceL2", tensor, body.const((-1,)), keepdims=1)
    return body.op("Div", tensor, body.op("Max", norm, floor))


def shares_of_sum(body: Body, weights: str) -> str:
    """Each row over the sum of its weights, rows of zeros left at zero."""
    total = body.op("ReduceSum", weights, body.const((-1,)), keepdims=1)
    return body.op("Div", weights, body.op("Max", total, body.real(SUM_FLOOR)))


def build(body: Body, has: list[str]) -> None:
    """`YosoAttention` at num_hashes 0: the expectation E_ij = (1 - arccos(q_i . k_j) / pi)^tau."""
    rows = Rows(body, "key", "query")
    # Lifted rows have the bound's norm or their own, and no product of theirs meets the coordinates added to them.
    lifted = body.op("Max", body.real(NORM_FLOOR), body.op("Sqrt", body.attribute("norm_lift")))
    query, key = (unit_rows(body, body.heads(body.padded(name)), lifted) for name in ("query", "key"))
    value = body.heads(body.padded("value"))
    cosine = body.op("MatMul", query, body.op("Transpose", key, perm=[0, 2, 1]))
    angle = body.op("Acos", body.op("Clip", cosine, body.real(-1.0), body.real(1.0)))
    closeness = body.op("Sub", body.real(1.0), body.op("Div", angle, body.real(math.pi)))
    power = body.op("Cast", body.attribute("hash_bits"), to=TensorProto.FLOAT)
    same = rows.same_sequence(body)
    weights = body.op("Where", same, body.op("Pow", closeness, power), body.real(0.0))
    divided = body.op("Equal", body.attribute("normalize"), body.const(2))
    weights = body.op("Where", divided, shares_of_sum(body, weights), weights)
    if "importance" in body.outputs:
        importance(body, rows, weights)
    mixed = body.op("MatMul", weights, value)
    scaled = body.op("Equal", body.attribute("normalize"), body.const(1))
    mixed = body.op("Where", scaled, unit_rows(body, mixed, body.real(NORM_FLOOR)), mixed)
    if "conv_weight" in has:
        mixed = body.op("Add", mixed, convolution(body, rows, same, value))
    rows.cut(body, mixed, out="output")


def convolution(body: Body, rows: Rows, same: str, value: str) -> str:
    """YOSO-C: sum over taps k of w_k value_{i + k - c // 2} inside the sequence, as a banded matrix `[H, rows, T]`."""
    taps = body.size("conv_weight", 1)
    tap = body.op("Add", rows.distance(body), body.op("Div", taps, body.const((2,))))
    inside = body.op("And", body.op("GreaterOrEqual", tap, body.const(0)), body.op("Less", tap, taps))
    index = body.op("Where", inside, tap, body.const(0))
    band = body.op("Gather", "conv_weight", index, axis=1)
    band = body.op("Where", body.op("And", inside, same), band, body.real(0.0))
    return body.op("MatMul", band, value)
