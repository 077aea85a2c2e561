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
    """LayerNormalization, in parts since its epsilon is the node's."""
    last = body.const((-1,))
    deviation = body.op("Sub", rows, body.op("ReduceMean", rows, last))
    variance = body.op("ReduceMean", body.op("Mul", deviation, deviation), last)
    size = body.op("Sqrt", body.op("Add", variance, body.attribute("epsilon")))
    return body.op("Add", body.op("Mul", body.op("Div", deviation, size), "norm_weight"), "norm_bias")
