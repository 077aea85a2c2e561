"""What KeptLengths takes and gives."""

from attenuator.ops.kept_lengths.rule import DROP, MERGES
from attenuator.ops.spec import CU_SEQLENS, Attribute, Knob, Operator, Tensor

KEEP = Knob(
    name="keep",
    dtype="float",
    default=1.0,
    low=0.05,
    high=1.0,
    exact=1.0,
    accuracy="rises",
    unit="share of tokens",
    doc="The share of a text's tokens that a layer computes, in the mean over the layers behind the first attention: "
    "those that attention weighs most, the first one always; a smaller share spends less time.",
    source="Goyal et al., PoWER-BERT, ICML 2020; Kim and Cho, Length-Adaptive Transformer, ACL 2021",
)

SPEC = Operator(
    name="KeptLengths",
    key="kept_lengths",
    inputs=(CU_SEQLENS, Tensor("keep", ("B",), "float", "share of rows kept, one per sequence", host=True)),
    outputs=(
        Tensor(
            "kept_cu_seqlens",
            ("B + 1",),
            "int32",
            "first kept row of each sequence, then their number K",
            host=True,
            shape=(("cu_seqlens", 0),),
        ),
    ),
    attributes=(
        Attribute(
            "exponent",
            "float",
            "a sequence keeps the share keep^exponent of its rows; 0 to 1",
            default=1.0,
            high=1,
        ),
        Attribute(
            "merge",
            "string",
            "what becomes of the rows that are not kept: nothing, or one row more, their mean",
            default=DROP,
            choices=MERGES,
        ),
    ),
    knobs=(KEEP,),
    host=True,
    doc="Gives each sequence of a packed batch its length after a selection, from the lengths and a knob alone.",
    source="Goyal et al., PoWER-BERT, ICML 2020, section 3.2",
)
