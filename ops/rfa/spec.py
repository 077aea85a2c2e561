"""What RfaAttention takes and gives."""

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    LAYER,
    NUM_FEATURES,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SEED,
    VALUE,
    Attribute,
    Operator,
    Tensor,
)

SPEC = Operator(
    name="RfaAttention",
    key="rfa",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor("num_features", ("B",), "int32", "random directions per sequence; 0 = the exact kernel", host=True),
        SEED,
        Tensor(
            "inverse_sigma",
            ("num_heads",),
            "float",
            "trained factor on each head's 1/sigma, cut to +-1,000",
            optional=True,
        ),
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(
        NUM_HEADS,
        Attribute("sigma", "float", "width of the Gaussian kernel of unit rows", default=1.0, low=0.05, high=1000.0),
        LAYER,
        QUERIES,
    ),
    knobs=(NUM_FEATURES,),
    attention="rfa",
    cpu_only=True,
    doc="Softmax attention over cosines, estimated by random Fourier features, linear in length.",
    source="Peng et al., 'Random Feature Attention', ICLR 2021, sections 2.2 and 3.1, without the gate",
)
