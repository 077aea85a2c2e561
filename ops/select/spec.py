"""What TokenSelect takes and gives."""

from attenuator.ops.spec import CU_SEQLENS, LAST, UNMERGED_CU_SEQLENS, Operator, Tensor

SPEC = Operator(
    name="TokenSelect",
    key="select",
    inputs=(
        Tensor("rows", ("T", "C"), "float", "rows to choose from"),
        Tensor("importance", ("T",), "float", "what each row matters, as attention gives it", float32=True),
        CU_SEQLENS,
        Tensor("kept_cu_seqlens", ("B + 1",), "int32", "first kept row of each sequence, then K", host=True),
        UNMERGED_CU_SEQLENS,
    ),
    outputs=(
        Tensor(
            "kept",
            ("K", "C"),
            "float",
            "the chosen rows, in their order",
            shape=(("kept_cu_seqlens", LAST), ("rows", 1)),
        ),
        Tensor(
            "places",
            ("K",),
            "int64",
            "which rows these are, ascending",
            shape=(("kept_cu_seqlens", LAST),),
        ),
    ),
    attributes=(),
    knobs=(),
    doc="Keeps the first row of each sequence of a packed batch and those of largest importance, in their order; the "
    "others are dropped, or merged to one row more, their mean.",
    source="Goyal et al., PoWER-BERT, ICML 2020, section 3.2; Liang et al., EViT, ICLR 2022, section 3.2",
)
