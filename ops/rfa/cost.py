"""What RfaAttention costs: linear in the length."""

from collections.abc import Mapping

from attenuator.ops.cost import Drawn, NodeShape, OperatorCost, Outlook
from attenuator.ops.cost_features import directions_drawn

# Multiply-adds of exact attention that take as long as one direction's sine and cosine: from 12 heads of 64 by 64, 256
# directions, 512 tokens, AVX-512, one thread; 33 at 128 tokens and 95 at 4,096.
SINE_WORK = 54.0


class RfaCost(OperatorCost):
    """Features of keys and queries, the keys' sums, and the product of the queries with them."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: linear in length and features; at 0 features those of softmax attention over unit rows.

        Directions are kept from run to run and not counted here, but in `drawn`.
        """
        num_features = int(knobs.get("num_features", 0))
        if not num_features:
            return node.attention_macs(tokens)
        of_direction = node.head_dim + 2 * (node.value_dim + 1) + SINE_WORK
        return num_features * (tokens + node.queries(tokens)) * node.num_heads * of_direction

    def drawn(self, node: NodeShape, knobs: Mapping[str, float]) -> Drawn:
        """The directions of a new seed."""
        return directions_drawn(node, knobs, orthogonal=False)

    def verdict(self, outlook: Outlook) -> list[str]:
        """The general one, and what the exact value is for."""
        [knob] = outlook.knobs
        return [
            *super().verdict(outlook),
            f"The exact value {knob.exact:g} computes what the features estimate, quadratic in length.",
        ]


COST = RfaCost()
