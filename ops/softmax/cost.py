"""What SoftmaxAttention costs: the measure of all others."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost, Outlook


class SoftmaxCost(OperatorCost):
    """Scores, and their product with the values."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: quadratic in the length, linear under a window."""
        return node.attention_macs(tokens)

    def verdict(self, outlook: Outlook) -> list[str]:
        """That there is nothing to turn, and what a faster attention could win."""
        first, last = outlook.lengths[0], outlook.lengths[-1]
        several = last.tokens > first.tokens
        share = f" and {last.attention_share:.0%} at {last.tokens}" if several else ""
        gain = f" and {last.free_attention:.1f}x" if several else ""
        return [
            "This bundle computes exact softmax attention and has no knob.",
            f"Attention is {first.attention_share:.0%} of its time at {first.tokens} tokens{share}: free attention "
            f"would win {first.free_attention:.2f}x{gain}.",
        ]


COST = SoftmaxCost()
