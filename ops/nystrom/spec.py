"""What NystromAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    NUM_HEADS,
    QUERY,
    SCALE,
    VALUE,
    Attribute,
    Knob,
    Operator,
    Tensor,
)

NUM_LANDMARKS = Knob(
    name="num_landmarks",
    dtype="int32",
    default=64,
    low=0,
    high=512,
    exact=0,
    accuracy="rises",
    unit="landmarks",
    doc="More landmarks follow softmax attention more closely and cost proportionally more time, with an inverse of "
    "num_landmarks^3; sequences of no more tokens than landmarks, and all at 0, get exact softmax attention.",
    source="Xiong et al., AAAI 2021, section 3.2",
)

SPEC = Operator(
    name="NystromAttention",
    key="nystrom",
    inputs=(
        # Landmarks are means of all queries, so there is no attribute by which the first row is computed alone.
        replace(QUERY, axes=("T", QUERY.axes[1])),
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("num_landmarks", ("B",), "int32", "landmarks per sequence; 0 = exact softmax attention", host=True),
        Tensor(
            "conv_weight",
            ("num_heads", "c"),
            "float",
            "kernel of a depthwise convolution of the values along the sequence, c odd, added to the output",
            optional=True,
        ),
    ),
    outputs=(replace(ATTENTION_OUTPUT, axes=("T", ATTENTION_OUTPUT.axes[1])),),
    attributes=(
        NUM_HEADS,
        SCALE,
        Attribute("iterations", "int", "steps towards the pseudo-inverse", default=6, low=1, high=16),
        Attribute(
            "divisor",
            "string",
            "by what the first guess of the pseudo-inverse is divided, the largest column sum of landmarks' weights: "
            "of each head, as in the paper; or of all heads of the sequence, as in the published code",
            default="head",
            choices=("head", "sequence"),
        ),
    ),
    knobs=(NUM_LANDMARKS,),
    attention="softmax",
    cpu_only=True,
    doc="Softmax attention through landmarks, the means of segments of the sequence, linear in length; also what a "
    "Nystromformer was trained with.",
    source="Xiong et al., 'Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention', AAAI 2021",
)
