"""Linear layers of a traced graph, and what follows them that can be computed with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from attenuator.ops.dequantize_product import spec as product

__all__ = ["LinearLayer", "epsilon_of", "is_linear", "is_transposed"]

ONNX = ("", "ai.onnx")
# Activations that follow linear layers, by op type and the value of `approximate`.
ACTIVATIONS = {
    ("Gelu", "none"): product.GELU,
    ("Gelu", "tanh"): product.GELU_TANH,
    ("Relu", None): product.RELU,
}
EPSILON = next(item for item in product.SPEC.attributes if item.name == "epsilon")
STANDARD_EPSILON = 1e-5  # of ONNX
# What transformers calls `gelu_new`, x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): nodes and their other operands.
GELU_NEW = (
    ("Pow", 3.0),
    ("Mul", 0.044715),
    ("Add", "x"),
    ("Mul", math.sqrt(2 / math.pi)),
    ("Tanh", None),
    ("Add", 1.0),
    ("Mul", "x / 2"),
)


@dataclass(slots=True)
class LinearLayer:
    """A linear layer and what follows it that is computed with it.

    Attributes:
        nodes: the linear layer, then those whose values nothing else reads.
        bias: `[out]`.
        activation: as DequantizeProduct names it.
        residual: what is added, `[rows, out]`.
        norm: the LayerNormalization that comes last.
    """

    nodes: list[ir.Node]
    bias: ir.Value | None = None
    activation: str = product.NONE
    residual: ir.Value | None = None
    norm: ir.Node | None = None

    @classmethod
    def of(cls, node: ir.Node) -> LinearLayer:
        """Finds what follows a linear layer."""
        layer = cls([node], bias=node.inputs[2] if len(node.inputs) > 2 else None)
        added = layer.added()
        if layer.bias is None and added is not None and is_constant_row(added, node):
            layer.bias = added
            layer.take_next()
        following = layer.next()
        if following is not None and (kind := ACTIVATIONS.get(activation_of(following))):
            layer.activation = kind
            layer.take_next()
        elif nodes := gelu_new(layer.nodes[-1].outputs[0]):
            layer.activation = product.GELU_TANH
            layer.nodes += nodes
        added = layer.added()
        if added is not None and are_alike(added, layer.nodes[-1].outputs[0]):
            layer.residual = added
            layer.take_next()
        following = layer.next()
        if following is not None and is_norm(following, layer.nodes[-1].outputs[0], node):
            layer.norm = following
            layer.take_next()
        return layer

    def next(self) -> ir.Node | None:
        """The one node that reads what the layer yields so far."""
        [value] = self.nodes[-1].outputs
        uses = value.uses()
        return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None

    def added(self) -> ir.Value | None:
        """What that node adds, where it is an addition."""
        node = self.next()
        if node is None or node.domain not in ONNX or node.op_type != "Add":
            return None
        return other_operand(node, self.nodes[-1].outputs[0])

    def take_next(self) -> None:
        """Makes the next node part of the layer."""
        node = self.next()
        assert node is not None
        self.nodes.append(node)


def is_linear(node: ir.Node) -> bool:
    """Whether a node multiplies rows `[rows, in]` by a constant fp32 weight."""
    if node.domain not in ONNX or node.op_type not in ("MatMul", "Gemm"):
        return False
    rows, weight = node.inputs[:2]
    if rows is None or (rows.shape is not None and rows.shape.rank() != 2):
        return False
    if weight is None or weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return False
    plain = all(node.attributes[name].as_float() == 1.0 for name in ("alpha", "beta") if name in node.attributes)
    untransposed = "transA" not in node.attributes or node.attributes["transA"].as_int() == 0
    if weight.const_value.shape.rank() != 2 or not plain or not untransposed:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is None or is_constant_row(bias, node)


def is_transposed(node: ir.Node) -> bool:
    """Whether a linear layer holds its weight as `[out, in]`."""
    attribute = node.attributes.get("transB")
    return attribute is not None and bool(attribute.as_int())


def is_constant_row(value: ir.Value, node: ir.Node) -> bool:
    """Whether a value is a constant `[out]` for a linear layer `[in, out]`."""
    columns = array_shape(node.inputs[1])[0 if is_transposed(node) else 1]
    return value.const_value is not None and array_shape(value) == [columns]


def is_norm(node: ir.Node, rows: ir.Value, linear: ir.Node) -> bool:
    """Whether a node normalizes each of the rows that a linear layer yields, with a weight and a bias."""
    if node.domain not in ONNX or node.op_type != "LayerNormalization" or len(node.inputs) < 3:
        return False
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    last = axis in (-1, 1) and len(node.outputs) == 1 and node.inputs[0] is rows
    constant = all(value is not None and is_constant_row(value, linear) for value in node.inputs[1:3])
    return last and constant and EPSILON.fits(epsilon_of(node))


def epsilon_of(node: ir.Node) -> float:
    """A LayerNormalization's epsilon."""
    attribute = node.attributes.get("epsilon")
    return STANDARD_EPSILON if attribute is None else attribute.as_float()


def array_shape(value: ir.Value | None) -> list[int]:
    """A constant's shape."""
    assert value is not None
    assert value.const_value is not None
    return list(value.const_value.shape.numpy())


def activation_of(node: ir.Node) -> tuple[str, str | None]:
    """A node's type, and which form of Gelu it is."""
    attribute = node.attributes.get("approximate")
    form = "none" if attribute is None else attribute.as_string()
    return node.op_type if node.domain in ONNX else "", form if node.op_type == "Gelu" else None


def are_alike(first: ir.Value, second: ir.Value) -> bool:
    """Whether two values are known to have the same shape."""
    known = first.shape is not None and all(isinstance(axis, int) or axis.value is not None for axis in first.shape)
    return known and first.shape == second.shape


def gelu_new(x: ir.Value) -> list[ir.Node]:
    """The nodes of `GELU_NEW` where nothing else reads their values, the last one last; else none."""
    readers = [use.node for use in x.uses()]
    nodes = [node for node in readers if node.op_type == "Mul" and is_number(other_operand(node, x), 0.5)]
    if len(readers) != 3 or len(nodes) != 1 or x.is_graph_output():
        return []
    known = {"x": x, "x / 2": nodes[0].outputs[0]}
    value = x
    for op_type, operand in GELU_NEW:
        following = [use.node for use in value.uses() if use.node.op_type == op_type and use.node not in nodes]
        if len(following) != 1 or value.is_graph_output() or (value is not x and len(value.uses()) != 1):
            return []
        [node] = following
        other = other_operand(node, value)
        if op_type == "Pow" and node.inputs[0] is not value:
            return []
        if not (other is known[operand] if isinstance(operand, str) else is_number(other, operand)):
            return []
        nodes.append(node)
        value = node.outputs[0]
    return nodes if len(known["x / 2"].uses()) == 1 and not known["x / 2"].is_graph_output() else []


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """A node's operand beside this one."""
    return next((item for item in node.inputs if item is not value), None)


def is_number(value: ir.Value | None, number: float | None) -> bool:
    """Whether a value is a constant of one element, that number in float32; or, for None, is not there."""
    if value is None or number is None:
        return value is None and number is None
    constant = value.const_value
    return constant is not None and constant.size == 1 and math.isclose(constant.numpy().item(), number, rel_tol=1e-6)
