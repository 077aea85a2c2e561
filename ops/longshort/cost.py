"""What LongShortAttention costs: linear in the length, and in its window."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost
from attenuator.ops.window.rule import narrowed

PUBLISHED_ROWS = 32  # mixtures of a head; where the graph does not say


class LongShortCost(OperatorCost):
    """The mixtures of all keys, and softmax attention over them and the window."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: every key is scored twice and mixed once for each mixture, every query meets what it sees."""
        rows = node.tables.get("dynamic_projection", (PUBLISHED_ROWS * node.num_heads, 0))[0] / node.num_heads
        trained = int(node.attributes["trained_window"])
        window = narrowed(trained, int(knobs.get("window", 0)))
        both = node.head_dim + node.value_dim
        seen = min(tokens, 2 * window + 1) + rows
        return node.num_heads * (tokens * rows * (2 * node.head_dim + both) + node.queries(tokens) * seen * both)


COST = LongShortCost()
