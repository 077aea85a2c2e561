"""Predicted work of a sequence, in multiply-adds, from the graph's own weights and knobs.

    cost(n, knobs) = n * (sum of weight sizes of the dense layers) + sum over attention nodes of n * keys * unit

where `keys` is what one row visits: the number of hashes for YOSO, the sequence length (or window) otherwise. Good to
about a factor of two against time, which is what admission, batching and lanes need; never part of an answer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attenuator import ops
from attenuator.ops.spec import DOMAIN
from attenuator.runtime.graph import Graph, Node

DENSE = {"MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "DynamicQuantizeMatMul", "FusedGemm", "QGemm"}
ACOS_WORK = 32  # multiply-adds' worth of one collision probability, (1 - acos(x) / pi)^tau


@dataclass(frozen=True, slots=True)
class AttentionNode:
    """What the cost of one attention node depends on.

    Attributes:
        key: operator key (`yoso`, `mca`, `softmax`).
        num_heads: heads.
        width: num_heads * head_dim.
        hash_bits: tau (YOSO).
        window: keys on each side; 0 = all.
        first: only the first row of each sequence is computed.
    """

    key: str
    num_heads: int
    width: int
    hash_bits: int
    window: int
    first: bool

    def cost(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds for one sequence."""
        rows = 1 if self.first else tokens
        num_hashes = int(knobs.get("num_hashes", 0)) if self.key == "yoso" else 0
        if num_hashes:
            # Keys are hashed and scattered once, rows hashed and gathered once: 2 * (tau + 1) * width a hash.
            return num_hashes * (tokens + rows) * (self.hash_bits + 1) * self.width
        keys = min(tokens, 2 * self.window + 1) if self.window else tokens
        extra = ACOS_WORK * self.num_heads if self.key == "yoso" else 0
        return rows * keys * (2 * self.width + extra)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Predicts the work of a sequence.

    Attributes:
        dense: multiply-adds a token takes in dense layers.
        attention: the attention nodes.
    """

    dense: float
    attention: tuple[AttentionNode, ...]

    def predict(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of one sequence.

        Args:
            tokens: its length.
            knobs: value by knob name.

        Returns:
            Multiply-adds, at least 1.
        """
        return max(1.0, tokens * self.dense + sum(node.cost(tokens, knobs) for node in self.attention))


def cost_model(graph: Graph) -> CostModel:
    """Reads the cost model off a graph.

    Args:
        graph: what the ONNX file says about itself.

    Returns:
        The model; layers that compute one row per sequence only are counted as if they computed all.
    """
    keys = {operator.name: operator.key for operator in ops.OPERATORS}
    consumers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            consumers.setdefault(name, []).append(node)
    dense = 0.0
    attention = []
    for node in graph.nodes:
        key = keys.get(node.op_type) if node.domain == DOMAIN else None
        if node.op_type in DENSE or key == "mca":
            dense += max((math.prod(shape) for shape in _weights(node, graph)), default=0)
        if key in ("yoso", "mca", "softmax"):
            attention.append((node, key))
    fallback = int(math.sqrt(dense / (12 * len(attention)))) if attention else 0
    return CostModel(dense, tuple(_attention(n, k, graph, consumers, fallback) for n, k in attention))


def _weights(node: Node, graph: Graph) -> list[tuple[int, ...]]:
    return [graph.shapes[name] for name in node.inputs if len(graph.shapes.get(name, ())) == 2]


def _attention(node: Node, key: str, graph: Graph, consumers: Mapping[str, list[Node]], fallback: int) -> AttentionNode:
    width = 0
    value = node.outputs[0]
    for _ in range(4):  # the output projection follows at once, or after a reshape or two
        following = consumers.get(value, [])
        dense = [shape for after in following if after.op_type in DENSE for shape in _weights(after, graph)]
        if dense:
            width = dense[0][0]
            break
        if not following or not following[0].outputs:
            break
        value = following[0].outputs[0]
    return AttentionNode(
        key=key,
        num_heads=int(node.attributes.get("num_heads", 1)),
        width=width or fallback or 1,
        hash_bits=int(node.attributes.get("hash_bits", 0)),
        window=int(node.attributes.get("window", 0)),
        first=node.attributes.get("queries") == "first",
    )
