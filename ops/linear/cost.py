"""What LinearAttention costs: linear in the length."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost, Outlook

# Multiply-adds of exact attention that take as long as one here: features are computed beside narrow products.
MAC_WORK = 2.0


class LinearCost(OperatorCost):
    """The keys' and values' sums, and the product of the queries with them."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: each key is added to the head's state once, each query reads it once."""
        state = node.num_heads * node.head_dim * (node.value_dim + 1)
        return MAC_WORK * (tokens + node.queries(tokens)) * state

    def verdict(self, outlook: Outlook) -> list[str]:
        """That there is nothing to turn, and where it is faster than exact softmax attention."""
        longest, start = outlook.lengths[-1], outlook.crossover
        never = start is None or start > outlook.max_tokens
        return [
            "This bundle computes linear attention, as it was trained, and has no knob.",
            "Softmax attention would be at least as fast at every length this model takes."
            if never
            else f"It overtakes softmax attention at about {start} tokens: {longest.speedup:.1f}x for the whole model "
            f"at {longest.tokens}.",
        ]


COST = LinearCost()
