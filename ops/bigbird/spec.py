"""What BigBirdAttention takes and gives."""

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    LAYER,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SCALE,
    SEED,
    VALUE,
    Attribute,
    Knob,
    Operator,
    Tensor,
)

NUM_RANDOM_BLOCKS = Knob(
    name="num_random_blocks",
    dtype="int32",
    default=3,
    low=0,
    high=64,
    exact=0,
    accuracy="rises",
    unit="blocks of keys",
    doc="Blocks of keys that each block of queries sees by chance, beside the first, the last and its neighbours; more "
    "cost proportionally more time; 0 sees every key, exact softmax attention, quadratic in length, as do texts of at "
    "most 5 + 2 * num_random_blocks blocks.",
    source="Zaheer et al., NeurIPS 2020, section 2 and appendix D",
    sampling="bounded",
)

SPEC = Operator(
    name="BigBirdAttention",
    key="bigbird",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("num_random_blocks", ("B",), "int32", "random blocks per query block; 0 = exact softmax", host=True),
        SEED,
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(
        NUM_HEADS,
        SCALE,
        LAYER,
        QUERIES,
        Attribute("block_size", "int", "rows of a block", default=64, low=1, high=65536),
        Attribute(
            "random_blocks",
            "string",
            "which blocks a query block sees by chance: drawn by the seed; or first, the first block once more for "
            "each of them, as transformers evaluates",
            default="drawn",
            choices=("drawn", "first"),
        ),
    ),
    knobs=(NUM_RANDOM_BLOCKS,),
    attention="softmax",
    cpu_only=True,
    draws_unless=("random_blocks", "first"),
    doc="Softmax attention over global, neighbouring and random blocks of keys, linear in length.",
    source="Zaheer et al., 'Big Bird: Transformers for Longer Sequences', NeurIPS 2020, section 2 and appendix D",
)
