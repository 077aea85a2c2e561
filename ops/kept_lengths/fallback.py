"""KeptLengths as an ONNX function: at its exact value every row is kept."""

from __future__ import annotations

from attenuator.ops.fallback import Body

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`KeptLengths` at keep = 1."""
    body.op("Identity", "cu_seqlens", out="kept_cu_seqlens")
