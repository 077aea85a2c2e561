"""What DequantizeProduct takes and gives."""

from attenuator.ops.spec import Attribute, Operator, Tensor

NONE, GELU, GELU_TANH, RELU = ACTIVATIONS = ("none", "gelu", "gelu_tanh", "relu")

SPEC = Operator(
    name="DequantizeProduct",
    key="dequantize_product",
    inputs=(
        Tensor("sums", ("T or B", "N"), "int32", "a product of quantized rows and a quantized weight"),
        Tensor("row_scale", ("T or B",), "float", "scale of each row", float32=True),
        Tensor("channel_scale", ("N",), "float", "scale of each column of the weight", float32=True),
        Tensor("bias", ("N",), "float", "of the linear layer", optional=True, float32=True),
        Tensor("residual", ("T or B", "N"), "float", "added to each row", optional=True, float32=True),
        Tensor("norm_weight", ("N",), "float", "of a LayerNormalization, the last", optional=True, float32=True),
        Tensor("norm_bias", ("N",), "float", "of the same", optional=True, float32=True),
    ),
    outputs=(
        Tensor(
            "output",
            ("T or B", "N"),
            "float",
            "norm(activation(sums row_scale channel_scale + bias) + residual)",
            float32=True,
            shape=(("sums", 0), ("sums", 1)),
        ),
    ),
    attributes=(
        Attribute(
            "activation",
            "string",
            "what follows the linear layer; `gelu` is the exact one, `gelu_tanh` its approximation",
            default=NONE,
            choices=ACTIVATIONS,
        ),
        Attribute("epsilon", "float", "added to a row's variance, under the root", default=1e-5, low=0, high=1),
    ),
    knobs=(),
    doc="Scales the sums of a product in integers by row and channel, and computes what follows a linear layer: bias, "
    "activation, residual, LayerNormalization.",
    source="Yao et al., ZeroQuant, NeurIPS 2022, section 4.3 (dequantization fused with what follows it)",
    cpu_only=True,
)
