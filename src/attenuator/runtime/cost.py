"""Predicted work of a sequence, in multiply-adds, from the graph's own weights and knobs.

    cost(n, knobs) = linear layers + sum over the domain's nodes of what `ops/<operator>/cost.py` says

Good to about a factor of two against time, which is what admission, batching and lanes need; never part of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.ops import OPERATORS
from attenuator.ops.cost import costs_of
from attenuator.runtime.graph import Graph
from attenuator.runtime.work import Work, count_work

COSTS = costs_of(OPERATORS)  # by the operator's key; fails where an operator has none


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts the work of a sequence.

    Attributes:
        work: what the graph holds.
    """

    work: Work

    def predict(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of one sequence.

        Args:
            tokens: its length.
            knobs: value by knob name.

        Returns:
            Multiply-adds, at least 1.
        """
        operators = sum(COSTS[node.operator].work(node, tokens, knobs) for node in self.work.operators)
        return max(1.0, self.work.dense_macs(tokens) + operators)


def cost_model(graph: Graph) -> CostModel:
    """Reads the cost model off a graph.

    Raises:
        BundleError: a node of the domain is unknown, or has an attribute of a wrong type.
    """
    return CostModel(count_work(graph))
