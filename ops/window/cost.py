"""What WindowAttention costs: the pairs of rows and keys that its window leaves."""

from collections.abc import Mapping
from dataclasses import replace

from attenuator.ops.cost import NodeShape, OperatorCost
from attenuator.ops.window.rule import narrowed


class WindowCost(OperatorCost):
    """Exact softmax attention under the narrowed window."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds: linear in the length."""
        window = narrowed(int(node.attributes["trained_window"]), int(knobs.get("window", 0)))
        return replace(node, attributes={**node.attributes, "window": window}).attention_macs(tokens)


COST = WindowCost()
