"""What WindowAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    GLOBAL_TOKENS,
    IMPORTANCE,
    IMPORTANCE_OUTPUT,
    KEY,
    NUM_HEADS,
    POSITIONS,
    QUERIES,
    QUERY,
    SCALE,
    VALUE,
    WINDOW_INPUT,
    WINDOW_KNOB,
    Attribute,
    Operator,
)

SPEC = Operator(
    name="WindowAttention",
    key="window",
    inputs=(QUERY, KEY, VALUE, CU_SEQLENS, WINDOW_INPUT, POSITIONS),
    outputs=(ATTENTION_OUTPUT, IMPORTANCE_OUTPUT),
    attributes=(
        NUM_HEADS,
        SCALE,
        Attribute(
            "trained_window",
            "int",
            "keys with |i - j| <= trained_window, whatever the knob says; 0 = all, whatever the knob says",
            default=0,
            low=0,
            high=2**30,
        ),
        GLOBAL_TOKENS,
        QUERIES,
        IMPORTANCE,
    ),
    knobs=(replace(WINDOW_KNOB, bounded_by="trained_window"),),
    attention="window",
    cpu_only=True,
    doc="Exact softmax attention under a window, as Longformer has it, which each request may narrow.",
    source="Beltagy et al., 'Longformer', 2020, section 3.1",
)
