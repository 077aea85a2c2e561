"""What RelativeAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    IMPORTANCE,
    IMPORTANCE_OUTPUT,
    KEY,
    NUM_HEADS,
    POSITIONS,
    QUERIES,
    QUERY,
    SCALE,
    UNMERGED_CU_SEQLENS,
    VALUE,
    Operator,
    Tensor,
)

SPEC = Operator(
    name="RelativeAttention",
    key="relative",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        Tensor(
            "buckets",
            ("2 * reach + 1",),
            "int64",
            "row of the tables for each distance i - j from -reach to reach; those beyond have the row of the last",
            optional=True,
        ),
        Tensor("pos_key", ("R", "num_heads * head_dim"), "float", "position keys, met by the queries", optional=True),
        Tensor("pos_query", ("R", "num_heads * head_dim"), "float", "position queries, met by the keys", optional=True),
        Tensor("bias", ("R", "num_heads"), "float", "added to the scaled scores", optional=True),
        replace(POSITIONS, doc="where each row stands in its sequence, ascending: i and j; without it, row after row"),
        UNMERGED_CU_SEQLENS,
    ),
    outputs=(
        ATTENTION_OUTPUT,
        IMPORTANCE_OUTPUT,
    ),
    attributes=(NUM_HEADS, SCALE, QUERIES, IMPORTANCE),
    knobs=(),
    attention="relative",
    asked_as="softmax",
    doc="Exact softmax attention whose scores also depend on the distance of two tokens.",
    source="He et al., 'DeBERTa', ICLR 2021, section 3.1; Shaw et al., NAACL 2018; Song et al., 'MPNet', NeurIPS 2020",
)
