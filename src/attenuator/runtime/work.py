"""Counts a model's work from its graph: multiply-adds per token, per sequence, and in attention.

A tensor has one row per token (`T`), one per sequence (`B`), or is constant; which, follows from the graph inputs and
is carried along the nodes. Linear layers are the MatMul and Gemm nodes with a constant weight.
"""

import math
from dataclasses import dataclass, field
from enum import IntEnum

from attenuator.errors import BundleError
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.cost import NodeShape
from attenuator.ops.spec import Operator
from attenuator.runtime.graph import Graph, Node

TOKEN_INPUTS = {"input_ids", "position_ids", "token_type_ids"}
LINEAR = {"MatMul", "Gemm", "MatMulInteger"}
# Operators whose output describes a shape and has no rows of the batch.
SHAPE_ONLY = {"Shape", "Size", "Constant", "ConstantOfShape", "Range"}
BY_NAME = {operator.name: operator for operator in OPERATORS}
ATTRIBUTE_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (float, int), "string": str}


class Rows(IntEnum):
    """What a tensor has rows of."""

    CONSTANT = 0
    SEQUENCE = 1
    TOKEN = 2


@dataclass(slots=True)
class Work:
    """A model's work.

    Attributes:
        operators: its nodes of the domain, in order.
        token_macs: multiply-adds of linear layers per token, value projections inside attention nodes apart.
        sequence_macs: multiply-adds of linear layers per sequence.
        token_values: values that all other nodes write per token.
        layer_macs: multiply-adds of one full layer's linear layers per token, a value projection inside its attention
            node apart; 0 where the model has but one layer.
        nodes: nodes of the domain by operator name.
        parameters: weights by element count.
    """

    operators: list[NodeShape] = field(default_factory=list)
    token_macs: int = 0
    sequence_macs: int = 0
    token_values: int = 0
    layer_macs: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    parameters: int = 0

    @property
    def attention(self) -> list[NodeShape]:
        """The attention nodes, in order."""
        return [node for node in self.operators if node.num_heads]

    def dense_macs(self, tokens: int) -> int:
        """Multiply-adds outside attention for one sequence."""
        return tokens * self.token_macs + self.sequence_macs

    def attention_macs(self, tokens: int) -> int:
        """Multiply-adds of all attention nodes, were they exact softmax attention."""
        return sum(node.attention_macs(tokens) for node in self.attention)

    def projection_macs(self, tokens: int) -> int:
        """Multiply-adds of the value projections inside attention nodes, were they exact."""
        return sum(node.projection_macs(tokens) for node in self.attention)


# First axis of a node's first output, as its spec names it.
ROWS_OF_AXIS = {"T": Rows.TOKEN, "B": Rows.SEQUENCE}


class _Counter:
    """Walks a graph once, in execution order."""

    def __init__(self, graph: Graph) -> None:
        self.work = Work()
        self.constants = dict(graph.shapes)
        self.widths: dict[str, int] = {}
        self._between = self._layers = 0
        self.rows = dict.fromkeys(graph.shapes, Rows.CONSTANT) | dict.fromkeys(TOKEN_INPUTS, Rows.TOKEN)
        # A value that no node writes and that is not a weight is a graph input: per token, or else per sequence.
        written = {name for node in graph.nodes for name in node.outputs}
        for name in {name for node in graph.nodes for name in node.inputs} - written - set(self.rows) - {""}:
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
            shape = self._shape(node)
            self.work.operators.append(shape)
            if shape.num_heads:
                self._layers += 1
                self.work.layer_macs = self._between
        elif node.op_type in LINEAR and len(node.inputs) > 1 and len(self.constants.get(node.inputs[1], ())) == 2:
            inner, outer = self.constants[node.inputs[1]]
            if rows is Rows.TOKEN:
                self.work.token_macs += inner * outer
            else:
                self.work.sequence_macs += inner * outer
            # Between two attention nodes: output projection, feed-forward, projections of the next layer.
            if self._layers == 1:
                self._between += inner * outer
        elif rows is Rows.TOKEN:
            self.work.token_values += width

    def _rows(self, node: Node) -> Rows:
        if node.op_type in SHAPE_ONLY:
            return Rows.CONSTANT
        inputs = [self.rows.get(name, Rows.CONSTANT) for name in node.inputs if name]
        if node.domain == DOMAIN:
            # An axis that the spec calls "T or B" is the one that the first input has.
            rows = ROWS_OF_AXIS.get(_operator(node).outputs[0].axes[0])
            return rows if rows is not None else next(iter(inputs), Rows.CONSTANT)
        if node.op_type == "Gather" and len(inputs) == 2 and inputs[1] is not Rows.CONSTANT:
            return inputs[1]
        return max(inputs, default=Rows.CONSTANT)

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

    def _shape(self, node: Node) -> NodeShape:
        operator = _operator(node)
        inputs = dict(zip((tensor.name for tensor in operator.inputs), node.inputs, strict=False))
        attributes = _attributes(operator, node)
        if not operator.attention:
            return NodeShape(operator.key, 0, 0, 0, 0, attributes)
        heads = max(1, int(attributes.get("num_heads", 1)))
        width = self.widths.get(inputs.get("query", ""), 0)
        channels, value_width = 0, self.widths.get(inputs.get("value", ""), width)
        weight = self.constants.get(inputs.get("value_weight", ""), ())
        if len(weight) == 2:
            channels, value_width = weight
        return NodeShape(operator.key, heads, width // heads, value_width // heads, channels, attributes)


def _operator(node: Node) -> Operator:
    operator = BY_NAME.get(node.op_type)
    if operator is None:
        raise BundleError(f"the model has a node {node.op_type}, must be one of: {', '.join(BY_NAME)}")
    return operator


def _attributes(operator: Operator, node: Node) -> dict[str, int | float | str]:
    """The attributes of a node that its operator knows, defaults filled in."""
    values = {}
    for attribute in operator.attributes:
        value = node.attributes.get(attribute.name, attribute.default)
        if value is None:
            continue
        if not isinstance(value, ATTRIBUTE_TYPES[attribute.kind]):
            raise BundleError(
                f"the model has a node {node.op_type} whose {attribute.name} is {value!r}, must be of type "
                f"{attribute.kind}"
            )
        values[attribute.name] = value
    return values


def count_work(graph: Graph) -> Work:
    """Counts the work of a packed graph.

    Raises:
        BundleError: a node of the domain is unknown, or has an attribute of a wrong type.
    """
    counter = _Counter(graph)
    for node in graph.nodes:
        counter.count(node)
    counter.work.parameters = sum(math.prod(shape) for shape in graph.shapes.values())
    return counter.work
