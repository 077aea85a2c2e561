"""DequantizeProduct as an ONNX function."""

from __future__ import annotations

from attenuator.ops.dequantize_product.spec import GELU, GELU_TANH, RELU
from attenuator.ops.fallback import Body

__all__ = ["build", "product"]


def product(body: Body, has: list[str]) -> str:
    """Scaled sums, bias and activation; all activations are computed, and one is taken."""
    # A Cast in its place is fused with the product into a node that multiplies the bias by the row's scale.
    values = body.op("DequantizeLinear", "sums", "row_scale", axis=0)
    values = body.op("Mul", values, "channel_scale")
    if "bias" in has:
        values = body.op("Add", values, "bias")
    computed = {
        GELU: body.op("Gelu", values),
        GELU_TANH: body.op("Gelu", values, approximate="tanh"),
        RELU: body.op("Relu", values),
    }
    for choice, activated in computed.items():
        values = body.op("Where", body.is_choice("activation", choice), activated, values)
    return values


def build(body: Body, has: list[str]) -> None:
    """`DequantizeProduct`."""
    rows = product(body, has)
    if "residual" in has:
        rows = body.op("Add", rows, "residual")
    if "norm_weight" in has:
        rows = norm(body, rows)
    body.op("Identity", rows, out="output")


def norm(body: Body, rows: str) -> str:
    """LayerNormalization with the node's epsilon."""
    result = body.op("LayerNormalization", rows, "norm_weight", "norm_bias", axis=-1)
    body.refer(body.nodes[-1], "epsilon")
    return result
