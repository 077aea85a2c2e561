"""Counts a model's work from its graph: multiply-adds per token, per sequence, and in attention.

A tensor has one row per token (`T`), one per sequence (`B`), or is constant; which, follows from the graph inputs and
is carried along the nodes. Linear layers are the MatMul and Gemm nodes with a constant weight.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from attenuator.errors import BundleError
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.runtime.graph import Graph, Node

TOKEN_INPUTS = {"input_ids", "position_ids", "token_type_ids"}
LINEAR = {"MatMul", "Gemm", "MatMulInteger"}
# Their output says something about a shape, not about rows.
SHAPE_ONLY = {"Shape", "Size", "Constant", "ConstantOfShape", "Range"}
BY_NAME = {operator.name: operator for operator in OPERATORS}
BY_KEY = {operator.key: operator for operator in OPERATORS}


class Rows(IntEnum):
    """What a tensor has rows of."""

    CONSTANT = 0
    SEQUENCE = 1
    TOKEN = 2


@dataclass(frozen=True, slots=True)
class AttentionNode:
    """One attention node.

    Attributes:
        key: the operator's key.
        num_heads: attention heads.
        head_dim: channels of a head's queries and keys.
        value_dim: channels of a head's values.
        channels: width of the rows before the value projection (MCA), else 0.
        hash_bits: bits per hash (YOSO), else 0.
        window: keys on either side, 0 for all.
        first_only: only the first token of each sequence is a query.
        estimator: how the value projection is approximated (MCA), else empty.
    """

    key: str
    num_heads: int
    head_dim: int
    value_dim: int
    channels: int
    hash_bits: int
    window: int
    first_only: bool
    estimator: str = ""

    def keys(self, tokens: int) -> int:
        """Most keys that a row sees in a sequence."""
        return min(tokens, 2 * self.window + 1) if self.window else tokens

    def queries(self, tokens: int) -> int:
        """Rows that are computed in a sequence."""
        return 1 if self.first_only else tokens

    def softmax_macs(self, tokens: int) -> int:
        """Multiply-adds of exact attention: scores, and their product with the values."""
        return self.queries(tokens) * self.keys(tokens) * self.num_heads * (self.head_dim + self.value_dim)

    def value_macs(self, tokens: int) -> int:
        """Multiply-adds of the exact value projection inside the node (MCA), 0 where a linear layer before it has them.

        With one query row a sequence the node computes (A X) W_v: cheaper, and nothing is left to sample.
        """
        if self.first_only:
            return self.channels * self.num_heads * (tokens + self.value_dim)
        return tokens * self.channels * self.num_heads * self.value_dim


@dataclass(slots=True)
class Work:
    """A model's work.

    Attributes:
        attention: its attention nodes, in order.
        token_macs: multiply-adds of linear layers per token, value projections of MCA nodes apart.
        sequence_macs: multiply-adds of linear layers per sequence.
        token_values: values that all other nodes write per token.
        layer_macs: multiply-adds of one full layer's linear layers per token, an MCA node's value projection apart; 0
            where the model has but one layer.
        nodes: nodes of the domain by operator name.
        parameters: weights by element count.
    """

    attention: list[AttentionNode] = field(default_factory=list)
    token_macs: int = 0
    sequence_macs: int = 0
    token_values: int = 0
    layer_macs: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    parameters: int = 0

    def dense_macs(self, tokens: int) -> int:
        """Multiply-adds outside attention for one sequence."""
        return tokens * self.token_macs + self.sequence_macs

    def softmax_macs(self, tokens: int) -> int:
        """Multiply-adds of all attention nodes, were they exact softmax attention."""
        return sum(node.softmax_macs(tokens) for node in self.attention)

    def value_macs(self, tokens: int, *, sparable: bool = False) -> int:
        """Multiply-adds of the value projections inside attention nodes, or only of those that `alpha` can spare."""
        return sum(node.value_macs(tokens) for node in self.attention if not (sparable and node.first_only))


class _Counter:
    """Walks a graph once, in execution order."""

    def __init__(self, graph: Graph) -> None:
        self.work = Work()
        self.constants = dict(graph.shapes)
        self.widths: dict[str, int] = {}
        self._between = 0
        self.rows = dict.fromkeys(graph.shapes, Rows.CONSTANT) | dict.fromkeys(TOKEN_INPUTS, Rows.TOKEN)
        # What no node made and is no weight is a graph input; those that are not per token are per sequence.
        made = {name for node in graph.nodes for name in node.outputs}
        for name in {name for node in graph.nodes for name in node.inputs} - made - set(self.rows) - {""}:
            self.rows[name] = Rows.SEQUENCE

    def count(self, node: Node) -> None:
        rows = self._rows(node)
        for output in node.outputs:
            self.rows[output] = rows
        if rows is Rows.CONSTANT:
            self._constant(node)
            return
        width = self._width(node)
        for output in node.outputs[:1]:
            if width:
                self.widths[output] = width
        if node.domain == DOMAIN:
            self.work.nodes[node.op_type] = self.work.nodes.get(node.op_type, 0) + 1
            if "query" in self._inputs(node):
                self.work.attention.append(self._attention(node))
                self.work.layer_macs = self._between
        elif node.op_type in LINEAR and len(node.inputs) > 1 and len(self.constants.get(node.inputs[1], ())) == 2:
            inner, outer = self.constants[node.inputs[1]]
            if rows is Rows.TOKEN:
                self.work.token_macs += inner * outer
            else:
                self.work.sequence_macs += inner * outer
            # From one attention node to the next lie output projection, feed-forward, and the next projections.
            if len(self.work.attention) == 1:
                self._between += inner * outer
        elif rows is Rows.TOKEN:
            self.work.token_values += width

    def _rows(self, node: Node) -> Rows:
        if node.op_type in SHAPE_ONLY:
            return Rows.CONSTANT
        if node.op_type == BY_KEY["pool"].name:
            return Rows.SEQUENCE
        given = [self.rows.get(name, Rows.CONSTANT) for name in node.inputs if name]
        if node.domain == DOMAIN:
            return given[0] if given else Rows.CONSTANT
        if node.op_type == "Gather" and len(given) == 2 and given[1] is not Rows.CONSTANT:
            return given[1]
        return max(given, default=Rows.CONSTANT)

    def _constant(self, node: Node) -> None:
        """Keeps the shapes of weights that the graph transposes or converts before use."""
        shape = self.constants.get(node.inputs[0]) if node.inputs else None
        if shape is None:
            return
        if node.op_type == "Transpose" and len(shape) == 2:
            self.constants[node.outputs[0]] = shape[::-1]
        elif node.op_type in ("Identity", "Cast", "DequantizeLinear"):
            self.constants[node.outputs[0]] = shape

    def _width(self, node: Node) -> int:
        """Channels of a node's first output, 0 where unknown."""
        if node.op_type in LINEAR and len(node.inputs) > 1 and node.inputs[1] in self.constants:
            weight = self.constants[node.inputs[1]]
            return weight[0 if node.attributes.get("transB") else -1] if weight else 0
        if node.op_type == "Gather" and node.inputs[0] in self.constants:
            table = self.constants[node.inputs[0]]
            return table[-1] if table else 0
        if node.op_type in ("ReduceMax", "ReduceSum"):  # of a row, for its int8 scale
            return 1
        return max((self.widths.get(name, 0) for name in node.inputs[:2]), default=0)

    def _inputs(self, node: Node) -> Mapping[str, str]:
        operator = BY_NAME.get(node.op_type)
        if operator is None:
            raise BundleError(f"the model has a node {node.op_type}, must be one of: {', '.join(BY_NAME)}")
        return dict(zip((tensor.name for tensor in operator.inputs), node.inputs, strict=False))

    def _attention(self, node: Node) -> AttentionNode:
        operator, inputs = BY_NAME[node.op_type], self._inputs(node)
        heads = max(1, int(node.attributes.get("num_heads", 1)))
        width = self.widths.get(inputs["query"], 0)
        channels, value_width = 0, self.widths.get(inputs.get("value", ""), width)
        weight = self.constants.get(inputs.get("value_weight", ""), ())
        if len(weight) == 2:
            channels, value_width = weight
        return AttentionNode(
            key=operator.key,
            num_heads=heads,
            head_dim=width // heads,
            value_dim=value_width // heads,
            channels=channels,
            hash_bits=int(node.attributes.get("hash_bits", 0)),
            window=int(node.attributes.get("window", 0)),
            first_only=node.attributes.get("queries") == "first",
            estimator=str(node.attributes.get("estimator", "sampled")) if operator.key == "mca" else "",
        )


def count_work(graph: Graph) -> Work:
    """Counts the work of a packed graph.

    Raises:
        BundleError: a node of the domain is unknown.
    """
    counter = _Counter(graph)
    for node in graph.nodes:
        counter.count(node)
    counter.work.parameters = sum(math.prod(shape) for shape in graph.shapes.values())
    return counter.work
