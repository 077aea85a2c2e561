"""Modelled time of a whole model at a length, from which `inspect` says what a knob can win.

Time is counted work times ns per unit; `ops/cost.py` has the rates and says how good they are. Only ratios are shown,
and always as modelled: `attenuator inspect --measure` asks the clock instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.ops.cost import NS_PER_DENSE_MAC, NS_PER_VALUE
from attenuator.runtime.cost import COSTS
from attenuator.runtime.work import Work

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Modelled time of one sequence through a model, on one core, in ns.

    Attributes:
        work: the model's work.
    """

    work: Work

    def rest_ns(self, tokens: int) -> float:
        """Everything outside the nodes of the domain."""
        return NS_PER_DENSE_MAC * self.work.dense_macs(tokens) + NS_PER_VALUE * tokens * self.work.token_values

    def attention_ns(self, tokens: int) -> float:
        """All attention nodes, as exact softmax attention, value projections not counted."""
        return self.exact_nodes_ns(tokens) - NS_PER_DENSE_MAC * self.work.projection_macs(tokens)

    def exact_nodes_ns(self, tokens: int) -> float:
        """All nodes of the domain, as exact softmax attention, value projections inside them included."""
        return sum(node.exact_ns(tokens) for node in self.work.operators)

    def nodes_ns(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """All nodes of the domain as the model has them."""
        return sum(COSTS[node.operator].ns(node, tokens, knobs) for node in self.work.operators)

    def exact_ns(self, tokens: int) -> float:
        """The whole model with exact softmax attention."""
        return self.rest_ns(tokens) + self.exact_nodes_ns(tokens)

    def attention_share(self, tokens: int) -> float:
        """Share of the exact model's time that attention takes, value projections not counted."""
        return self.attention_ns(tokens) / self.exact_ns(tokens)

    def free_attention(self, tokens: int) -> float:
        """Speed-up of the whole model if attention cost nothing."""
        return self.exact_ns(tokens) / (self.exact_ns(tokens) - self.attention_ns(tokens))

    def free_part(self, operator: str, tokens: int) -> float:
        """Speed-up of the whole model if the work that an operator's knobs can save cost nothing: an upper bound.

        Args:
            operator: its key.
            tokens: the length.
        """
        nodes = [node for node in self.work.operators if node.operator == operator]
        spared = sum(COSTS[operator].spared_ns(node, tokens) for node in nodes)
        return self.exact_ns(tokens) / (self.exact_ns(tokens) - spared)

    def layer_share(self, operator: str, tokens: int) -> float | None:
        """Share of a full layer's multiply-adds that the operator's knobs can spare.

        Of a value projection it is d^2 / (12 d^2 + 2 n d) in BERT, counted as Kim and Ko (2022) count.

        Args:
            operator: its key.
            tokens: the length.

        Returns:
            The share, or None where the model has no full layer of the operator.
        """
        nodes = [node for node in self.work.attention if node.operator == operator and not node.first_only]
        if not nodes or not self.work.layer_macs:
            return None
        node = nodes[0]
        layer = tokens * self.work.layer_macs + node.projection_macs(tokens) + node.attention_macs(tokens)
        return COSTS[operator].spared_macs(node, tokens) / layer

    def speedup(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Speed-up of the whole model at some knobs over exact softmax attention; below 1 it is slower."""
        return self.exact_ns(tokens) / (self.rest_ns(tokens) + self.nodes_ns(tokens, knobs))

    def crossover(self, knobs: Mapping[str, float]) -> int | None:
        """Shortest length from which the model at some knobs is faster than with exact softmax attention.

        Returns:
            Tokens, or None where it is slower at every length up to `LONGEST`.
        """
        low, high = 1, LONGEST
        if self.nodes_ns(high, knobs) >= self.exact_nodes_ns(high):
            return None
        while low < high:
            middle = (low + high) // 2
            if self.nodes_ns(middle, knobs) < self.exact_nodes_ns(middle):
                high = middle
            else:
                low = middle + 1
        return low
