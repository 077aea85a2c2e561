"""What YosoAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    IMPORTANCE_OUTPUT,
    KEY,
    LAYER,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SEED,
    VALUE,
    Attribute,
    Knob,
    Operator,
    Tensor,
)

NUM_HASHES = Knob(
    name="num_hashes",
    dtype="int32",
    default=32,
    low=0,
    high=512,
    exact=0,
    accuracy="rises",
    unit="hash tables",
    doc="More hashes cost proportionally more time and shrink the sampling error as 1/sqrt(num_hashes); "
    "0 computes the expectation, quadratic in length.",
    source="Zeng et al., ICML 2021, section 3.2",
    sampling="counted",
)

NORM_LIFT_HIGH = 1e30  # as in inputs.cc

SPEC = Operator(
    name="YosoAttention",
    key="yoso",
    own_isa=True,  # AMX where its hashes are those of VNNI
    inputs=(
        replace(QUERY, doc="projected queries, not scaled"),
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("num_hashes", ("B",), "int32", "hash tables per sequence; 0 = the expectation", host=True),
        SEED,
        Tensor("conv_weight", ("num_heads", "c"), "float", "YOSO-C's depthwise kernel, c odd", optional=True),
    ),
    outputs=(ATTENTION_OUTPUT, IMPORTANCE_OUTPUT),
    attributes=(
        NUM_HEADS,
        Attribute("hash_bits", "int", "bits per hash, tau in the paper", low=1, high=16),
        LAYER,
        Attribute("hash", "string", "family of hyperplanes", default="gaussian", choices=("gaussian", "hadamard")),
        Attribute(
            "normalize",
            "int",
            "1: l2-normalise each head's output (N-YOSO); 0: the raw average; 2: the raw average over the sum of "
            "collisions, a weighted mean of values",
            default=1,
            low=0,
            high=2,
        ),
        Attribute(
            "norm_lift",
            "float",
            "bound on the squared norms of query and key rows, which get a coordinate more each and that norm, in "
            f"[0, {NORM_LIFT_HIGH:g}]; 0: none",
            default=0.0,
            high=NORM_LIFT_HIGH,
        ),
        Attribute(
            "table_precision",
            "string",
            "of the sums in hash tables: float32; or int16, whole steps of a 127th of the column's largest value, on "
            "the CPU",
            default="float32",
            choices=("float32", "int16"),
        ),
        QUERIES,
        Attribute(
            "importance",
            "string",
            "what a key's importance is: the share of hashes in which its code is the first row's, summed over heads",
            default="none",
            choices=("none", "first"),
        ),
    ),
    knobs=(NUM_HASHES,),
    attention="yoso",
    doc="Attention by LSH Bernoulli sampling, linear in length.",
    source="Zeng et al., 'You Only Sample (Almost) Once', ICML 2021",
)
