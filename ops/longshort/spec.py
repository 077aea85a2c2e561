"""What LongShortAttention takes and gives."""

from dataclasses import replace

from attenuator.ops.spec import (
    ATTENTION_OUTPUT,
    CU_SEQLENS,
    KEY,
    NUM_HEADS,
    QUERIES,
    QUERY,
    SCALE,
    VALUE,
    WINDOW_INPUT,
    WINDOW_KNOB,
    Attribute,
    Operator,
    Tensor,
)

TRAINED_WINDOW = Attribute(
    "trained_window", "int", "keys with |i - j| <= this are seen as they are", default=64, low=1, high=2**30
)


def norm(of: str, channels: str) -> Tensor:
    """Factors and, in a second row, terms of a layer norm."""
    return Tensor(f"{of}_norm", ("2", f"num_heads * {channels}"), "float", f"of {of.replace('_', ' ')}s: factor, term")


SPEC = Operator(
    name="LongShortAttention",
    key="longshort",
    inputs=(
        QUERY,
        KEY,
        VALUE,
        CU_SEQLENS,
        WINDOW_INPUT,
        Tensor("dynamic_projection", ("num_heads * r", "head_dim"), "float", "W_P, r rows a head: score each key"),
        norm("local_key", "head_dim"),
        norm("local_value", "value_dim"),
        norm("global_key", "head_dim"),
        norm("global_value", "value_dim"),
    ),
    outputs=(ATTENTION_OUTPUT,),
    attributes=(
        NUM_HEADS,
        SCALE,
        TRAINED_WINDOW,
        Attribute(
            "epsilon",
            "float",
            "added to variances in the layer norms, in [1e-12, 1]",
            default=1e-5,
            low=1e-12,
            high=1.0,
        ),
        QUERIES,
    ),
    knobs=(
        replace(
            WINDOW_KNOB,
            bounded_by=TRAINED_WINDOW.name,
            source="Zhu et al., 'Long-Short Transformer', NeurIPS 2021, section 3.2",
        ),
    ),
    attention="longshort",
    cpu_only=True,
    doc="Softmax attention over a window of keys and r mixtures of all keys, linear in length.",
    source="Zhu et al., 'Long-Short Transformer', NeurIPS 2021, sections 3.2 to 3.4",
)
