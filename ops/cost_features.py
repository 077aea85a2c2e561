"""What random directions cost, for PerformerAttention and RfaAttention."""

from collections.abc import Mapping

from attenuator.ops.cost import NOTHING_DRAWN, Drawn, NodeShape

# Multiply-adds of exact attention that take as long as one coordinate: a normal number from a word of the stream, and
# for each channel half a row of its block, with which it is twice multiplied and whose multiple is taken off.
NORMAL_WORK, ORTHOGONAL_WORK = 790.0, 23.0
COORDINATE_BYTES = 4


def directions_drawn(node: NodeShape, knobs: Mapping[str, float], *, orthogonal: bool) -> Drawn:
    """The directions of all heads of a node for a new seed; nothing at 0 features.

    Args:
        node: its shape.
        knobs: with `num_features`.
        orthogonal: whether those of a block of `head_dim` are orthogonal.
    """
    coordinates = int(knobs.get("num_features", 0)) * node.num_heads * node.head_dim
    if not coordinates:
        return NOTHING_DRAWN
    work = NORMAL_WORK + (ORTHOGONAL_WORK * node.head_dim if orthogonal else 0.0)
    return Drawn(coordinates * work, coordinates * COORDINATE_BYTES)
