"""What LinearAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    NUM_HEADS,
    QUERIES,
    QUERY,
    VALUE,
    Operator,
)

SPEC = Operator(
    name="LinearAttention",
    key="linear",
    inputs=(
        replace(QUERY, doc="projected queries, not scaled"),
        KEY,
        VALUE,
        CU_SEQLENS,
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(NUM_HEADS, QUERIES),
    knobs=(),
    attention="linear",
    cpu_only=True,
    doc="Attention with the feature map elu(x) + 1 in place of softmax, linear in length.",
    source="Katharopoulos et al., 'Transformers are RNNs', ICML 2020, equations 4 to 6",
)
