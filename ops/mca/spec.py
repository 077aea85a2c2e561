"""What McaAttention takes and gives."""

from attenuator.ops.spec import (
    CU_SEQLENS,
    GLOBAL_TOKENS,
    IMPORTANCE,
    IMPORTANCE_OUTPUT,
    KEY,
    LAYER,
    NUM_HEADS,
    POSITIONS,
    QUERIES,
    QUERY,
    SCALE,
    SEED,
    WINDOW,
    Attribute,
    Knob,
    Operator,
    Tensor,
)

ALPHA = Knob(
    name="alpha",
    dtype="float",
    default=0.2,
    low=0.0,
    high=1.0,
    exact=0.0,
    accuracy="falls",
    unit="error coefficient",
    doc="Bounds the expected error of each output row by alpha * mean token norm * ||W_v||_F; a larger alpha spends "
    "fewer multiply-adds on the value projection, 0 computes it exactly.",
    source="Kim and Ko, AAAI 2022, Theorem 2",
)

SPEC = Operator(
    name="McaAttention",
    key="mca",
    inputs=(
        QUERY,
        KEY,
        Tensor("hidden", ("T", "C"), "float", "rows before the value projection"),
        Tensor("value_weight", ("C", "num_heads * head_dim"), "float", "W_v, input by output"),
        Tensor("value_bias", ("num_heads * head_dim",), "float", "b_v"),
        CU_SEQLENS,
        Tensor("alpha", ("B",), "float", "error coefficient per sequence; 0 = exact", host=True),
        SEED,
        POSITIONS,
    ),
    outputs=(
        Tensor(
            "output",
            ("T or B", "num_heads * head_dim"),
            "float",
            "attention output",
            shape=(("query", 0), ("value_weight", 1)),
        ),
        Tensor(
            "value_flops",
            ("B",),
            "float",
            "share of the exact value projection's multiply-adds spent",
            float32=True,
            shape=(("alpha", 0),),
        ),
        IMPORTANCE_OUTPUT,
    ),
    attributes=(
        NUM_HEADS,
        SCALE,
        LAYER,
        Attribute(
            "estimator",
            "string",
            "how the value projection is approximated",
            default="sampled",
            choices=("sampled", "deterministic", "paper"),
        ),
        WINDOW,
        GLOBAL_TOKENS,
        QUERIES,
        IMPORTANCE,
    ),
    knobs=(ALPHA,),
    attention="softmax",
    doc="Exact softmax attention over values whose projection is sampled to a stated error.",
    source="Kim and Ko, 'Fast Monte-Carlo Approximation of the Attention Mechanism', AAAI 2022",
)
