"""What BlendRows costs."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost


class BlendCost(OperatorCost):
    """One addition for every value of every row within reach."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Additions, and two multiply-adds a value for the blend."""
        reach = int(knobs.get("reach", 0))
        rows = min(tokens, 2 * reach + 1) if reach else tokens
        return tokens * (rows + 2) * node.num_heads * node.value_dim


COST = BlendCost()
