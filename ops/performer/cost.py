"""What PerformerAttention costs: linear in the length."""

from collections.abc import Mapping

from attenuator.ops.cost import Drawn, NodeShape, OperatorCost
from attenuator.ops.cost_features import directions_drawn

# Multiply-adds of exact attention that take as long as one feature's exponential: from 12 heads of 64 by 64, 256
# features, 512 tokens, AVX-512, one thread; 19 at 128 tokens and 55 at 4,096.
EXPONENTIAL_WORK = 48.0


class PerformerCost(OperatorCost):
    """Features of keys and queries, the keys' sums, and the product of the queries with them."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: linear in length and features; at 0 features those of softmax attention.

        Directions are kept from run to run and not counted here, but in `drawn`.
        """
        num_features = int(knobs.get("num_features", 0))
        if not num_features:
            return node.attention_macs(tokens)
        of_feature = node.head_dim + node.value_dim + 1 + EXPONENTIAL_WORK
        return num_features * (tokens + node.queries(tokens)) * node.num_heads * of_feature

    def drawn(self, node: NodeShape, knobs: Mapping[str, float]) -> Drawn:
        """The directions of a new seed."""
        return directions_drawn(node, knobs, orthogonal=True)


COST = PerformerCost()
