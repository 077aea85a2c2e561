"""What SoftmaxAttention takes and gives."""

from attenuator.ops.spec import (
    CU_SEQLENS,
    GLOBAL_TOKENS,
    IMPORTANCE,
    IMPORTANCE_OUTPUT,
    NUM_HEADS,
    POSITIONS,
    QUERIES,
    SCALE,
    WINDOW,
    Operator,
    Tensor,
)

SPEC = Operator(
    name="SoftmaxAttention",
    key="softmax",
    inputs=(
        Tensor("query", ("T or B", "num_heads * head_dim"), "float", "projected queries"),
        Tensor("key", ("T", "num_heads * head_dim"), "float", "projected keys"),
        Tensor("value", ("T", "num_heads * value_dim"), "float", "projected values"),
        CU_SEQLENS,
        POSITIONS,
    ),
    outputs=(
        Tensor(
            "output",
            ("T or B", "num_heads * value_dim"),
            "float",
            "attention output",
            shape=(("query", 0), ("value", 1)),
        ),
        IMPORTANCE_OUTPUT,
    ),
    attributes=(NUM_HEADS, SCALE, WINDOW, GLOBAL_TOKENS, QUERIES, IMPORTANCE),
    knobs=(),
    attention="softmax",
    doc="Exact softmax attention on packed batches.",
    source="Vaswani et al., 'Attention Is All You Need', NeurIPS 2017, section 3.2.1",
)
