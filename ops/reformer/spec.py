"""What ReformerAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    LAYER,
    NUM_HEADS,
    QUERY,
    SCALE,
    SEED,
    VALUE,
    Attribute,
    Knob,
    Operator,
    Tensor,
)

NUM_ROUNDS = Knob(
    name="num_rounds",
    dtype="int32",
    default=4,
    low=0,
    high=64,
    exact=0,
    accuracy="rises",
    unit="rounds of hashing",
    doc="More rounds cost proportionally more time and find more of the keys that matter; 0 computes exact softmax "
    "attention with shared queries and keys, quadratic in length.",
    source="Kitaev et al., ICLR 2020, section 2",
    sampling="bounded",  # every key counts once, however often it is met: errors fall faster than one over the root
)

SPEC = Operator(
    name="ReformerAttention",
    key="reformer",
    inputs=(
        replace(QUERY, axes=("T", "num_heads * head_dim"), doc="projected rows, queries and keys alike; not scaled"),
        VALUE,
        CU_SEQLENS,
        Tensor("num_rounds", ("B",), "int32", "rounds of hashing per sequence; 0 = exact softmax", host=True),
        SEED,
    ),
    outputs=(replace(ATTENTION_OUTPUT, axes=("T", "num_heads * value_dim")),),
    attributes=(
        NUM_HEADS,
        SCALE,
        LAYER,
        Attribute("chunk_size", "int", "sorted rows of a chunk", default=64, low=1, high=1024),
        Attribute(
            "num_buckets",
            "int",
            "most buckets of a round; a sequence of n tokens has 2 ceil(n / chunk_size), at most these, an even number",
            default=128,
            low=2,
            high=4096,
        ),
    ),
    knobs=(NUM_ROUNDS,),
    attention="reformer",
    cpu_only=True,
    doc="Attention with shared queries and keys among rows that locality-sensitive hashing sorts together.",
    source="Kitaev et al., 'Reformer: The Efficient Transformer', ICLR 2020",
)
