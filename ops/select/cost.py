"""What TokenSelect costs: one pass over the importances and one copy of the kept rows, nothing beside a linear layer.

Measured with KeptLengths before it and a Gather after it, 128 and 768 channels, 8 to 2,048 rows, shares 0.25 to 1.
"""

from collections.abc import Mapping

from attenuator.ops.cost import NegligibleCost, NodeShape

NS_PER_SELECTION = 2500.0  # of running these three nodes, whatever their size
NS_PER_ROW = 5.0  # finding the importance from which on rows are kept
NS_PER_COPIED_VALUE = 0.1


class SelectCost(NegligibleCost):
    """No multiply-adds, but time that short texts feel."""

    def ns(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Time as if every row were kept."""
        return NS_PER_SELECTION + tokens * (NS_PER_ROW + NS_PER_COPIED_VALUE * node.channels)


COST = SelectCost()
