"""What BigBirdAttention costs: linear in the length, but for the rows of its first and last block."""

from collections.abc import Mapping

from attenuator.ops.bigbird.rule import FIXED_BLOCKS, is_full
from attenuator.ops.cost import NodeShape, OperatorCost


class BigBirdCost(OperatorCost):
    """Exact attention of each block of queries over the keys that it sees."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: those of exact attention for the pairs of rows and keys that are left."""
        count, size = int(knobs.get("num_random_blocks", 0)), int(node.attributes["block_size"])
        if node.first_only or is_full(tokens, count, size):
            return node.attention_macs(tokens)
        last = tokens % size or size
        inner = tokens - size - last
        # The second block and the last but one have a global block for a neighbour.
        pairs = (size + last) * tokens + inner * ((FIXED_BLOCKS - 1 + count) * size + last) - 2 * size * size
        return pairs * node.num_heads * (node.head_dim + node.value_dim)

    def draws(self, attributes: Mapping[str, float | str], tokens: int, knobs: Mapping[str, float]) -> bool:
        """Not where a text is too short to draw from."""
        return not is_full(tokens, int(knobs["num_random_blocks"]), int(attributes["block_size"]))


COST = BigBirdCost()
