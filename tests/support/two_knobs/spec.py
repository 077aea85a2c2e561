"""What BlendRows takes and gives."""

from dataclasses import replace

from attenuator.ops.mca.spec import ALPHA
from attenuator.ops.spec import CU_SEQLENS, Knob, Operator, Tensor

REACH = Knob(
    name="reach",
    dtype="int32",
    default=2,
    low=0,
    high=64,
    exact=0,
    accuracy="rises",
    unit="rows",
    doc="A row takes the mean of that many rows on either side; 0 takes the whole sequence.",
    source="tests",
)

SPEC = Operator(
    name="BlendRows",
    key="two_knobs",
    inputs=(
        Tensor("value", ("T", "C"), "float", "rows"),
        CU_SEQLENS,
        Tensor("reach", ("B",), "int32", "rows on either side; 0 = all", host=True),
        Tensor("alpha", ("B",), "float", "share of the row itself", host=True, optional=True),
    ),
    outputs=(Tensor("output", ("T", "C"), "float", "blended rows", shape=(("value", 0), ("value", 1))),),
    attributes=(),
    knobs=(REACH, replace(ALPHA, default=0.5, doc="A share alpha of the row itself is blended in.", source="tests")),
    attention="two_knobs",
    doc="The mean of the rows within reach, blended with the row itself.",
    source="tests",
)
