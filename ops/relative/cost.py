"""What RelativeAttention costs: exact softmax attention, and what the tables add."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape
from attenuator.ops.softmax.cost import SoftmaxCost

# Multiply-adds that take as long as finding and adding one term of one score.
TERM_WORK = 20.0


class RelativeCost(SoftmaxCost):
    """Scores, their product with the values, and the products with the tables."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: quadratic in the length up to half the tables' rows, then less than that."""
        macs, pairs = float(node.attention_macs(tokens)), node.queries(tokens) * tokens * node.num_heads
        tables = {name: shape for name, shape in node.tables.items() if name in ("pos_key", "pos_query", "bias")}
        for name, (rows, *_) in tables.items():
            macs += TERM_WORK * pairs
            if name != "bias":
                reached = 1 if node.first_only else min(rows, 2 * tokens)
                macs += tokens * reached * node.num_heads * node.head_dim
        return macs


COST = RelativeCost()
