"""Predicted work of a sequence, in multiply-adds, from the graph's own weights and knobs.

    cost(n, knobs) = linear layers + sum over attention nodes of (rows * what a row visits) + MCA's value projections

where a row visits its hashes for YOSO, and its keys otherwise. Good to about a factor of two against time, which is
what admission, batching and lanes need; never part of an answer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.ops.mca import rule as mca
from attenuator.runtime.graph import Graph
from attenuator.runtime.work import AttentionNode, Work, count_work

ACOS_WORK = 32  # multiply-adds' worth of one collision probability, (1 - acos(x) / pi)^tau
# Share of the value projection that a sampled head spends, times alpha * sqrt(C): 1.2 to 2.2 on short reviews.
MCA_SHARE = 1.3
# The nearer a probed head is to break-even, the more heads promise too little and are exact. Between the two bundled
# models, whose shares at alpha 0.5 and 300 tokens are 0.19 and 0.65.
PROMISE_POWER = 5


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
        attention = sum(attention_cost(node, tokens, knobs) for node in self.work.attention)
        return max(1.0, self.work.dense_macs(tokens) + attention)


def cost_model(graph: Graph) -> CostModel:
    """Reads the cost model off a graph.

    Raises:
        BundleError: a node of the domain is unknown.
    """
    return CostModel(count_work(graph))


def attention_cost(node: AttentionNode, tokens: int, knobs: Mapping[str, float]) -> float:
    """Multiply-adds of one attention node for one sequence, an MCA node's value projection included."""
    if node.key != "yoso":
        return node.softmax_macs(tokens) + value_share(node, tokens, knobs.get("alpha", 0.0)) * node.value_macs(tokens)
    rows = node.queries(tokens)
    num_hashes = int(knobs.get("num_hashes", 0))
    if not num_hashes:
        return node.softmax_macs(tokens) + rows * tokens * ACOS_WORK * node.num_heads
    # Keys are hashed and scattered once, rows hashed and gathered once.
    return num_hashes * (tokens + rows) * node.num_heads * (node.hash_bits * node.head_dim + node.value_dim)


def value_share(node: AttentionNode, tokens: int, alpha: float) -> float:
    """Predicted share of the exact value projection that an MCA node computes; what it is, hangs on the text.

    Args:
        node: the node.
        tokens: length of the sequence.
        alpha: the knob.

    Returns:
        0 to 1; 1 where nothing is sampled.
    """
    if node.first_only or node.estimator == "deterministic" or alpha <= 0:
        return 1.0
    if not mca.worth_approximating(tokens, node.channels, alpha, node.estimator, node.window):
        return 1.0
    share = min(1.0, MCA_SHARE / (alpha * math.sqrt(node.channels)))
    saved = tokens * (mca.TOKEN_GAIN - mca.COLUMN_COST * share)
    if node.estimator != "sampled":
        return share
    needed = mca.head_cost(node.head_dim)
    if not mca.probe_of(tokens, node.window).rows:
        return share if saved >= needed else 1.0
    needed += mca.maxima_cost(tokens, node.window, node.head_dim) / node.channels
    return share + (1 - share) * (needed / saved) ** PROMISE_POWER if saved > needed else 1.0
