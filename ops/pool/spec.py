"""What SequencePool takes and gives."""

from attenuator.ops.spec import CU_SEQLENS, Attribute, Operator, Tensor

SPEC = Operator(
    name="SequencePool",
    key="pool",
    inputs=(Tensor("hidden", ("T", "C"), "float", "rows of the last layer"), CU_SEQLENS),
    outputs=(
        Tensor(
            "output",
            ("B", "C"),
            "float",
            "one row per sequence, zeros for an empty one",
            shape=(None, ("hidden", 1)),
        ),
    ),
    attributes=(
        Attribute("mode", "string", "first token, or mean over tokens", default="first", choices=("first", "mean")),
    ),
    knobs=(),
    doc="Pools each sequence of a packed batch to one row, summed in token order.",
    source="Devlin et al., NAACL 2019 (first token); Reimers and Gurevych, EMNLP 2019 (mean)",
)
