"""What RequantizeProduct takes and gives: DequantizeProduct, then QuantizeRows."""

from dataclasses import replace

from attenuator.ops.dequantize_product.spec import SPEC as DEQUANTIZE
from attenuator.ops.quantize_rows.spec import SPEC as QUANTIZE
from attenuator.ops.spec import Operator

_QUANTIZED, _SCALE = QUANTIZE.outputs
LINEAR = ("sums", "row_scale", "channel_scale", "bias")

SPEC = Operator(
    name="RequantizeProduct",
    key="requantize_product",
    inputs=tuple(item for item in DEQUANTIZE.inputs if item.name in LINEAR),
    outputs=(
        replace(_QUANTIZED, axes=("T or B", "N"), shape=DEQUANTIZE.outputs[0].shape),
        replace(_SCALE, shape=DEQUANTIZE.outputs[0].shape[:1]),
    ),
    attributes=tuple(item for item in DEQUANTIZE.attributes if item.name == "activation"),
    knobs=(),
    doc="What DequantizeProduct gives, rounded as QuantizeRows rounds it, for a next layer that alone reads it.",
    source="Yao et al., ZeroQuant, NeurIPS 2022, section 4.3 (quantization fused with what comes before it)",
    cpu_only=True,
)
