"""What QuantizeRows takes and gives."""

from attenuator.ops.spec import Operator, Tensor

SPEC = Operator(
    name="QuantizeRows",
    key="quantize_rows",
    inputs=(Tensor("rows", ("T or B", "C"), "float", "rows to round", float32=True),),
    outputs=(
        Tensor(
            "quantized",
            ("T or B", "C"),
            "uint8",
            "round(row / scale) + 128, ties to even",
            shape=(("rows", 0), ("rows", 1)),
        ),
        Tensor(
            "scale",
            ("T or B",),
            "float",
            "largest magnitude of each row / 127; NaN where a row is not finite",
            float32=True,
            shape=(("rows", 0),),
        ),
    ),
    attributes=(),
    knobs=(),
    doc="Rounds each row to 8 bits by a scale of its own: activations quantized dynamically, per token.",
    source="Yao et al., ZeroQuant, NeurIPS 2022, section 4.1 (token-wise quantization)",
    cpu_only=True,
)
