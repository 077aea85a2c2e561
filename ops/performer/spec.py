"""What PerformerAttention takes and gives."""

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    LAYER,
    NUM_FEATURES,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SCALE,
    SEED,
    VALUE,
    Operator,
    Tensor,
)

SPEC = Operator(
    name="PerformerAttention",
    key="performer",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("num_features", ("B",), "int32", "random features per sequence; 0 = exact softmax", host=True),
        SEED,
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(NUM_HEADS, SCALE, LAYER, QUERIES),
    knobs=(NUM_FEATURES,),
    attention="softmax",
    cpu_only=True,
    doc="Softmax attention estimated by positive orthogonal random features (FAVOR+), linear in length.",
    source="Choromanski et al., 'Rethinking Attention with Performers', ICLR 2021, sections 2.3 and 2.4",
)
