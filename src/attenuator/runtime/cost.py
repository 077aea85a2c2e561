"""Predicted work of a sequence, in multiply-adds, from the graph's own weights and knobs.

    cost(n, knobs) = linear layers + sum over the domain's nodes of what `ops/<operator>/cost.py` says

both of as many rows as the selections before them leave of the sequence.

Good to about a factor of two against time, which is what admission, batching and lanes need; never part of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.ops.cost import NOTHING_DRAWN, Drawn
from attenuator.runtime.graph import Graph
from attenuator.runtime.work import COSTS, Work, count_work


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
            knobs: value by knob name; a knob that is absent has its exact value.

        Returns:
            Multiply-adds, at least 1.
        """
        macs: float = self.work.sequence_macs
        for stage, rows in zip(self.work.stages, self.work.rows(tokens, knobs), strict=True):
            macs += rows * stage.token_macs
            macs += sum(COSTS[node.operator].work(node, rows, knobs) for node in stage.operators)
        return max(1.0, macs)

    def drawn(self, knobs: Mapping[str, float]) -> Drawn:
        """What a run draws for a seed that is new, beside the work of its sequences.

        Args:
            knobs: value by knob name; a knob that is absent has its exact value.
        """
        return sum((COSTS[node.operator].drawn(node, knobs) for node in self.work.operators), NOTHING_DRAWN)


def cost_model(graph: Graph) -> CostModel:
    """Reads the cost model off a graph.

    Raises:
        BundleError: a node of the domain is unknown, or has an attribute of a wrong type.
    """
    return CostModel(count_work(graph))
