"""SequencePool as an ONNX function."""

from __future__ import annotations

from onnx import TensorProto

from attenuator.ops.fallback import Body, Rows

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`SequencePool`."""
    rows = Rows(body, "hidden")
    padded = body.padded("hidden")
    starts = body.op("Cast", "cu_seqlens", to=TensorProto.INT64)
    batch = body.op("Sub", body.size(starts, 0), body.const((1,)))
    begin = body.op("Slice", starts, body.const((0,)), batch, body.const((0,)))
    end = body.op("Slice", starts, body.const((1,)), body.op("Add", batch, body.const((1,))), body.const((0,)))
    length = body.op("Sub", end, begin)
    # The appended zero row stands in for the first row of an empty sequence.
    empty = body.op("Equal", length, body.const(0))
    first = body.op("Gather", padded, body.op("Where", empty, body.size("hidden", 0), begin))
    index = body.op("Range", body.const(0), body.op("Squeeze", batch, body.const((0,))), body.const(1))
    member = body.op("Equal", body.op("Unsqueeze", index, body.const((1,))), rows.sequence)
    sums = body.op("MatMul", body.op("Cast", member, to=TensorProto.FLOAT), padded)
    count = body.op("Cast", body.op("Max", length, body.const(1)), to=TensorProto.FLOAT)
    mean = body.op("Div", sums, body.op("Unsqueeze", count, body.const((1,))))
    body.op("Where", body.is_choice("mode", "first"), first, mean, out="output")
