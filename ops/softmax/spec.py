"""What SoftmaxAttention takes and gives."""

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    GLOBAL_TOKENS,
    IMPORTANCE,
    IMPORTANCE_OUTPUT,
    INT8_PRODUCTS,
    KEY,
    NUM_HEADS,
    POSITIONS,
    QUERIES,
    QUERY,
    SCALE,
    UNMERGED_CU_SEQLENS,
    VALUE,
    WINDOW,
    Operator,
)

SPEC = Operator(
    name="SoftmaxAttention",
    key="softmax",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        POSITIONS,
        UNMERGED_CU_SEQLENS,
    ),
    outputs=(
        ATTENTION_OUTPUT,
        IMPORTANCE_OUTPUT,
    ),
    attributes=(NUM_HEADS, SCALE, WINDOW, GLOBAL_TOKENS, QUERIES, IMPORTANCE, INT8_PRODUCTS),
    knobs=(),
    attention="softmax",
    doc="Exact softmax attention on packed batches.",
    source="Vaswani et al., 'Attention Is All You Need', NeurIPS 2017, section 3.2.1",
)
