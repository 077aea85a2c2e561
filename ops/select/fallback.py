"""TokenSelect as an ONNX function: where every row is kept, as at the exact value of the knob that sets the lengths."""

from __future__ import annotations

from attenuator.ops.fallback import Body

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`TokenSelect` where `kept_cu_seqlens` is `cu_seqlens`."""
    body.op("Identity", "rows", out="kept")
    total = body.op("Squeeze", body.size("rows", 0), body.const((0,)))
    body.op("Range", body.const(0), total, body.const(1), out="places")
