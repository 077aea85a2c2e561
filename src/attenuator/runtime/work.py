"""Counts of a model's work, from its graph: multiply-adds per token, per sequence, and in attention.

A tensor has one row per token (`T`), one per sequence (`B`), or is constant; which, follows from the graph inputs and
is carried along the nodes. Linear layers are the MatMul and Gemm nodes with a constant weight. Where operators select
rows, the tensors behind them have fewer: what is computed of the same rows is counted together, as one `Stage`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from attenuator.errors import BundleError
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.cost import NodeShape, costs_of
from attenuator.ops.spec import Operator, Tensor
from attenuator.runtime.graph import HALF_TYPES, Graph, Node

COSTS = costs_of(OPERATORS)  # by the operator's key; fails where an operator has none
# Knobs that choose how many rows go on; at their exact values a model needs the most memory.
ROW_KNOBS = {knob.name for operator in OPERATORS if COSTS[operator.key].part == "rows" for knob in operator.knobs}
EXACT: Mapping[str, float] = {}  # a knob that is absent has its exact value
TOKEN_INPUTS = {"input_ids", "position_ids", "token_type_ids"}
LINEAR = {"MatMul", "Gemm", "MatMulInteger"}
# Operators whose output describes a shape and has no rows of the batch.
SHAPE_ONLY = {"Shape", "Size", "Constant", "ConstantOfShape", "Range"}
BY_NAME = {operator.name: operator for operator in OPERATORS}
ATTRIBUTE_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (float, int), "string": str}


@dataclass(slots=True)
class Stage:
    """What a model computes of the rows that the same selections leave of a sequence.

    Attributes:
        selection: the node that selects these rows, None for every token.
        source: which stage of the model it selects from, by index; always an earlier one.
        depth: selections on the way here.
        operators: nodes of the domain, in order.
        token_macs: multiply-adds of linear layers per row, value projections inside attention nodes apart.
        token_values: values that all other nodes write per row, those of operators that compute row by row among them.
    """

    selection: NodeShape | None = None
    source: int = 0
    depth: int = 0
    operators: list[NodeShape] = field(default_factory=list)
    token_macs: int = 0
    token_values: int = 0


@dataclass(slots=True)
class Work:
    """A model's work.

    Attributes:
        stages: what is computed of every token, then of the rows that selections leave.
        sequence_macs: multiply-adds of linear layers per sequence.
        layer_macs: multiply-adds of one full layer's linear layers per token, a value projection inside its attention
            node apart; 0 where the model has but one layer.
        launches: nodes of the graph that have rows to compute, those of the domain aside that are neither attention nor
            compute row by row.
        nodes: nodes of the domain by operator name.
        parameters: weights by element count.
    """

    stages: list[Stage] = field(default_factory=lambda: [Stage()])
    sequence_macs: int = 0
    layer_macs: int = 0
    launches: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    parameters: int = 0

    @property
    def operators(self) -> list[NodeShape]:
        """The nodes of the domain, in order within a stage."""
        return [node for stage in self.stages for node in stage.operators]

    @property
    def attention(self) -> list[NodeShape]:
        """The attention nodes, in order."""
        return [node for node in self.operators if node.num_heads]

    @property
    def token_macs(self) -> int:
        """Multiply-adds of linear layers per token where every token goes on."""
        return sum(stage.token_macs for stage in self.stages)

    @property
    def token_values(self) -> int:
        """Values that nodes other than linear layers and attention write per token where every token goes on."""
        return sum(stage.token_values for stage in self.stages)

    def rows(self, tokens: int, knobs: Mapping[str, float] = EXACT) -> list[int]:
        """Rows of a sequence in each stage.

        Args:
            tokens: its length.
            knobs: value by knob name; a knob that is absent has its exact value.
        """
        rows = [tokens]
        for stage in self.stages[1:]:
            node, before = stage.selection, rows[stage.source]
            rows.append(COSTS[node.operator].rows(node, before, knobs) if node else before)
        return rows

    def dense_macs(self, tokens: int, knobs: Mapping[str, float] = EXACT) -> int:
        """Multiply-adds outside attention for one sequence."""
        staged = zip(self.stages, self.rows(tokens, knobs), strict=True)
        return self.sequence_macs + sum(rows * stage.token_macs for stage, rows in staged)

    def attention_macs(self, tokens: int) -> int:
        """Multiply-adds of all attention nodes, were they exact softmax attention over every token."""
        return sum(node.attention_macs(tokens) for node in self.attention)

    def projection_macs(self, tokens: int) -> int:
        """Multiply-adds of the value projections inside attention nodes, were they exact and of every token."""
        return sum(node.projection_macs(tokens) for node in self.attention)


class _Other(Enum):
    """What a tensor has rows of if not of tokens, which a `Stage` stands for."""

    CONSTANT = 0
    SEQUENCE = 1


_Rows = _Other | Stage
BOUNDARIES = "B + 1"  # first axis, in a spec, of a tensor that says where each sequence's rows begin


def _order(rows: _Rows) -> tuple[int, int]:
    """Sorts kinds of rows by how many there are: selected rows that meet all tokens are put back among them."""
    return (2, -rows.depth) if isinstance(rows, Stage) else (rows.value, 0)


class _Counter:
    """Walks a graph once, in execution order."""

    def __init__(self, graph: Graph) -> None:
        self.work = Work()
        [self._every] = self.work.stages
        self.constants = dict(graph.shapes)
        self._halves = set(graph.halves)
        self.widths: dict[str, int] = {}
        # Layers of attention that a value has behind it. A layer may have several nodes, none behind another.
        self._behind: dict[str, int] = {}
        self._between = self._layers = 0
        self.rows: dict[str, _Rows] = dict.fromkeys(graph.shapes, _Other.CONSTANT)
        self.rows |= dict.fromkeys(TOKEN_INPUTS, self._every)
        # The stage, by index, whose rows a tensor of boundaries bounds; one that no operator writes bounds all tokens.
        self._bounded: dict[str, int] = {}
        # A value that no node writes and that is not a weight is a graph input: per token, or else per sequence.
        written = {name for node in graph.nodes for name in node.outputs}
        for name in {name for node in graph.nodes for name in node.inputs} - written - set(self.rows) - {""}:
            self.rows[name] = _Other.SEQUENCE

    def count(self, node: Node) -> None:
        rows = _Other.CONSTANT if node.op_type in SHAPE_ONLY else self._rows(node)
        behind = max((self._behind.get(name, 0) for name in node.inputs if name), default=0)
        for output in node.outputs:
            self.rows[output] = rows
            self._behind[output] = behind
        if rows is _Other.CONSTANT and node.domain != DOMAIN:
            self._constant(node)
            return
        width = self._width(node)
        if width and node.outputs:
            self.widths[node.outputs[0]] = width
        if node.domain == DOMAIN:
            self.work.nodes[node.op_type] = self.work.nodes.get(node.op_type, 0) + 1
        if node.domain == DOMAIN and not _is_rowwise(_operator(node)):
            self._operator(node, behind)
            return
        self.work.launches += 1
        if node.op_type in LINEAR and len(node.inputs) > 1 and len(self.constants.get(node.inputs[1], ())) == 2:
            inner, outer = self.constants[node.inputs[1]]
            if isinstance(rows, Stage):
                rows.token_macs += inner * outer
            else:
                self.work.sequence_macs += inner * outer
            # Between two layers of attention: output projection, feed-forward, projections of the next layer.
            if behind == 1:
                self._between += inner * outer
        elif isinstance(rows, Stage):
            rows.token_values += width

    def _rows(self, node: Node) -> _Rows:
        inputs = [self.rows.get(name, _Other.CONSTANT) for name in node.inputs if name]
        if node.op_type == "Gather" and len(inputs) == 2 and inputs[1] is not _Other.CONSTANT:
            return inputs[1]
        return max(inputs, default=_Other.CONSTANT, key=_order)

    def _operator(self, node: Node, behind: int) -> None:
        """Counts a node of the domain with the rows it takes, and says what rows it gives."""
        operator = _operator(node)
        bounded = [
            self._bounded.get(name, 0)
            for tensor, name in zip(operator.inputs, node.inputs, strict=False)
            if tensor.axes[0] == BOUNDARIES
        ] or [0]
        stages = self.work.stages
        shape = self._shape(operator, node, behind if operator.attention else self._layers)
        stages[bounded[0]].operators.append(shape)
        if shape.num_heads:
            self._layers = behind + 1
            self._behind |= dict.fromkeys(node.outputs, self._layers)
            self.work.launches += 1
            self.work.layer_macs = self._between
        for tensor, name in zip(operator.outputs, node.outputs, strict=False):
            self.rows[name] = self._rows_given(operator, tensor, node, stages[bounded[0]])
            if tensor.axes[0] == BOUNDARIES:
                self._bounded[name] = len(stages)
                stages.append(Stage(shape, bounded[0], stages[bounded[0]].depth + 1))

    def _rows_given(self, operator: Operator, tensor: Tensor, node: Node, taken: Stage) -> _Rows:
        """Rows of an operator's output, by the first axis that its spec names.

        The first boundaries that a node is given bound the rows that it takes, T. Those that bound the rows that go on
        are named by the output's shape.
        """
        axis = tensor.axes[0]
        if axis in ("B", BOUNDARIES):
            return _Other.SEQUENCE
        if axis == "T or B":  # what the first input has
            return self.rows.get(node.inputs[0], _Other.CONSTANT) if node.inputs else _Other.CONSTANT
        rule = tensor.shape[0]
        if axis == "T" or rule is None:
            return taken
        names = dict(zip((item.name for item in operator.inputs), node.inputs, strict=False))
        return self.work.stages[self._bounded.get(names.get(rule[0], ""), 0)]

    def _constant(self, node: Node) -> None:
        """Keeps the shapes of weights that the graph transposes or converts before use."""
        shape = self.constants.get(node.inputs[0]) if node.inputs else None
        if shape is None:
            return
        if node.op_type == "Transpose" and len(shape) == 2:
            self.constants[node.outputs[0]] = shape[::-1]
        elif node.op_type in ("Identity", "Cast", "DequantizeLinear"):
            self.constants[node.outputs[0]] = shape
        kept = node.inputs[0] in self._halves
        if node.attributes.get("to") in HALF_TYPES if node.op_type == "Cast" else kept:
            self._halves.add(node.outputs[0])

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

    def _shape(self, operator: Operator, node: Node, layer: int) -> NodeShape:
        inputs = dict(zip((tensor.name for tensor in operator.inputs), node.inputs, strict=False))
        attributes = _attributes(operator, node)
        if not operator.attention:
            width = self.widths.get(node.inputs[0], 0) if node.inputs else 0
            return NodeShape(operator.key, 0, 0, 0, width, attributes, layer)
        heads = max(1, int(attributes.get("num_heads", 1)))
        width = self.widths.get(inputs.get("query", ""), 0)
        channels, value_width = 0, self.widths.get(inputs.get("value", ""), width)
        weight = self.constants.get(inputs.get("value_weight", ""), ())
        if len(weight) == 2:
            channels, value_width = weight
        tables = {name: shape for name, key in inputs.items() if (shape := self.constants.get(key))}
        head_dim, value_dim = width // heads, value_width // heads
        half = inputs.get("value_weight", "") in self._halves
        return NodeShape(operator.key, heads, head_dim, value_dim, channels, attributes, layer, tables, half)


def _is_rowwise(operator: Operator) -> bool:
    """Whether an operator computes row by row, as most nodes do: nothing tells it where sequences begin."""
    return all(tensor.axes[0] != BOUNDARIES for tensor in operator.inputs)


def _operator(node: Node) -> Operator:
    operator = BY_NAME.get(node.op_type)
    if operator is None:
        raise BundleError(f"the model has a node {node.op_type}, must be one of: {', '.join(BY_NAME)}")
    return operator


def _attributes(operator: Operator, node: Node) -> dict[str, int | float | str]:
    """The attributes of a node that its operator knows, defaults filled in."""
    values = operator.filled(node.attributes)
    for attribute in operator.attributes:
        value = values.get(attribute.name)
        if value is None:
            raise BundleError(f"the model has a node {node.op_type} without {attribute.name}, which it must have")
        if not isinstance(value, ATTRIBUTE_TYPES[attribute.kind]):
            raise BundleError(
                f"the model has a node {node.op_type} whose {attribute.name} is {value!r}, must be of type "
                f"{attribute.kind}"
            )
    return values


def count_work(graph: Graph) -> Work:
    """Counts the work of a packed graph.

    Raises:
        BundleError: a node of the domain is unknown, or lacks an attribute or has one of a wrong type.
    """
    counter = _Counter(graph)
    for node in graph.nodes:
        counter.count(node)
    counter.work.parameters = sum(math.prod(shape) for shape in graph.shapes.values())
    return counter.work
