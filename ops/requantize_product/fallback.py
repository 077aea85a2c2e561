"""RequantizeProduct as an ONNX function."""

from __future__ import annotations

from attenuator.ops.dequantize_product.fallback import product
from attenuator.ops.fallback import Body
from attenuator.ops.quantize_rows.fallback import quantized

__all__ = ["build"]


def build(body: Body, has: list[str]) -> None:
    """`RequantizeProduct`."""
    quantized(body, product(body, has))
