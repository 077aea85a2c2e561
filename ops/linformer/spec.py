"""What LinformerAttention takes and gives."""

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SCALE,
    VALUE,
    Operator,
    Tensor,
)

# Rows of one head behind those of another; a column for each position.
PROJECTION_AXES = ("num_heads * k", "max_tokens")

SPEC = Operator(
    name="LinformerAttention",
    key="linformer",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("key_projection", PROJECTION_AXES, "float", "E, k rows a head; a sequence of n tokens has n columns"),
        Tensor("value_projection", PROJECTION_AXES, "float", "F; key_projection where it is left out", optional=True),
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(NUM_HEADS, SCALE, QUERIES),
    knobs=(),
    attention="linformer",
    cpu_only=True,
    doc="Softmax attention over k learned projections of a sequence's keys and values, linear in length.",
    source="Wang et al., 'Linformer: Self-Attention with Linear Complexity', 2020, equation 7",
)
