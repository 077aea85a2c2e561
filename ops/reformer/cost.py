"""What ReformerAttention costs: linear in the length, with rounds of hashing; quadratic where it is exact."""

from collections.abc import Mapping

from attenuator.ops.cost import NodeShape, OperatorCost, Outlook
from attenuator.ops.reformer.rule import is_exact

# Multiply-adds of exact attention that take as long as one of a chunk, whose rows are gathered.
MAC_WORK = 1.8


class ReformerCost(OperatorCost):
    """Each round projects every row, and attends from it to two chunks."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of hashing and of chunks; of exact attention where that is computed."""
        chunk_size = int(node.attributes["chunk_size"])
        rounds = int(knobs.get("num_rounds", 0))
        if is_exact(tokens, chunk_size, rounds):
            return node.attention_macs(tokens)
        half = min(-(-tokens // chunk_size), int(node.attributes["num_buckets"]) // 2)
        of_row = half * node.head_dim + MAC_WORK * 2 * chunk_size * (node.head_dim + node.value_dim)
        return rounds * tokens * node.num_heads * of_row

    def draws(self, attributes: Mapping[str, float | str], tokens: int, knobs: Mapping[str, float]) -> bool:
        """Not where rounds would meet as many keys as there are."""
        return not is_exact(tokens, int(attributes["chunk_size"]), int(knobs["num_rounds"]))

    def verdict(self, outlook: Outlook) -> list[str]:
        """The general one, and where a setting is exact."""
        return [
            *super().verdict(outlook),
            "Where the chunks of all rounds would hold as many keys as a text has tokens, exact attention is computed "
            "in their place.",
        ]


COST = ReformerCost()
