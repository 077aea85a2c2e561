"""What NystromAttention costs: linear in the length, beside the inverse of each head's landmarks."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost


class NystromCost(OperatorCost):
    """Rows with landmarks twice, and four products of landmarks with landmarks for each step of the inverse."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds, those of the convolution among them."""
        taps = node.tables.get("conv_weight", (0, 0))[1]
        around = tokens * taps * node.num_heads * node.value_dim
        landmarks = int(knobs.get("num_landmarks", 0))
        if not 0 < landmarks < tokens:
            return node.attention_macs(tokens) + around
        width = node.head_dim + node.value_dim
        steps = 4 * int(node.attributes["iterations"]) + 1
        core = landmarks * landmarks * (node.head_dim + node.value_dim + steps * landmarks)
        return node.num_heads * (2 * tokens * landmarks * width + core) + around


COST = NystromCost()
