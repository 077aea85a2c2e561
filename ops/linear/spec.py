"""What LinearAttention takes and gives."""

from attenuator.ops.spec import CU_SEQLENS, NUM_HEADS, QUERIES, Operator, Tensor

SPEC = Operator(
    name="LinearAttention",
    key="linear",
    inputs=(
        Tensor("query", ("T or B", "num_heads * head_dim"), "float", "projected queries, not scaled"),
        Tensor("key", ("T", "num_heads * head_dim"), "float", "projected keys"),
        Tensor("value", ("T", "num_heads * value_dim"), "float", "projected values"),
        CU_SEQLENS,
    ),
    outputs=(
        Tensor(
            "output",
            ("T or B", "num_heads * value_dim"),
            "float",
            "attention output",
            shape=(("query", 0), ("value", 1)),
        ),
    ),
    attributes=(NUM_HEADS, QUERIES),
    knobs=(),
    attention="linear",
    cpu_only=True,
    doc="Attention with the feature map elu(x) + 1 in place of softmax, linear in length.",
    source="Katharopoulos et al., 'Transformers are RNNs', ICML 2020, equations 4 to 6",
)
