"""What LinformerAttention costs: linear in the length."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost, Outlook

PUBLISHED_ROWS = 256  # of a head's projection; where the graph does not say


class LinformerCost(OperatorCost):
    """The projections of keys and values, and softmax attention over the projected rows."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: each key meets the k projected rows once, and so does each query."""
        rows, _ = node.tables.get("key_projection", (PUBLISHED_ROWS * node.num_heads, 0))
        return float(rows * (node.head_dim + node.value_dim) * (tokens + node.queries(tokens)))

    def verdict(self, outlook: Outlook) -> list[str]:
        """That there is nothing to turn, and where it is faster than exact softmax attention."""
        longest, start = outlook.lengths[-1], outlook.crossover
        never = start is None or start > outlook.max_tokens
        return [
            "This bundle computes Linformer attention, as it was trained, and has no knob; its projection has a column "
            "for each token that it takes.",
            "Softmax attention would be at least as fast at every length this model takes."
            if never
            else f"It overtakes softmax attention at about {start} tokens: {longest.speedup:.1f}x for the whole model "
            f"at {longest.tokens}.",
        ]


COST = LinformerCost()
