"""int8 linear layers in a finished graph: activations quantised row by row, weights per output channel.

A linear layer y = x W + b, and behind it an activation, a residual and a LayerNormalization, as far as nothing else
reads what is between them, become

    q, s = QuantizeRows(x)                              uint8, zero point 128, one scale s a row; shared by layers
    a    = MatMulInteger(q, V, 128)                     int32, V int8 in [-63, 63], one scale w a channel
    y    = norm(activation(a s w + b) + residual)       DequantizeProduct

and where the next layer alone reads y, RequantizeProduct rounds it without writing it down.

Every scale comes from one row, and integer sums are exact in any order, so that a row's bits depend on nothing else in
the batch; ONNX Runtime's own dynamic quantisation takes one scale for the whole batch instead. The product is ONNX
Runtime's, which has a fast kernel for uint8 by int8 alone on x86. Weights have 7 bits: without VNNI it adds pairs of
products in 16 bits, where 2 * 255 * 64 just fits and 8-bit weights saturate.

Attention that can compute its products in int8 is told so by an attribute of its node. The layer that yields the logits
stays fp32, as do embeddings, their projection where it reads `[1, T, in]`, norms, other attention and value projections
that are an attention operator's own weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from attenuator.errors import ExportError
from attenuator.export.linear_layers import LinearLayer, epsilon_of, is_linear, is_transposed
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.dequantize_product import spec as product
from attenuator.ops.quantize_rows import spec as rounding
from attenuator.ops.quantize_rows.rule import ZERO_POINT
from attenuator.ops.requantize_product import spec as requantized
from attenuator.ops.spec import INT8_PRODUCTS

__all__ = ["WEIGHT_HIGH", "quantise", "quantise_weight"]

WEIGHT_HIGH = 63
# Channels below are zero: a scale among subnormal numbers is so coarse that integers would leave [-63, 63].
LOWEST_WEIGHT = np.float32(WEIGHT_HIGH) * np.finfo(np.float32).tiny
# Attention with products in int8, by op type.
IN_INT8 = {item.name for item in OPERATORS if INT8_PRODUCTS in item.attributes}
# Nodes that may stand between the last linear layer and the logits.
TAIL = {"Add", "Cast", "Identity", "Reshape", "Squeeze"}


def quantise_weight(weight: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Rounds a weight to 7 bits, symmetrically, one scale an output channel.

    Args:
        weight: `[in, out]`.

    Returns:
        int8 `[in, out]` in [-63, 63], and scales float32 `[out]`, 1 for a channel of zeros or nothing above 7e-37.
    """
    high = np.abs(weight).max(axis=0)
    scale = np.where(high >= LOWEST_WEIGHT, high / np.float32(WEIGHT_HIGH), np.float32(1)).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


class _Quantiser:
    """Rewrites one graph; what two layers share, their input or their weight, is quantised once."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.constants: dict[str, ir.Value] = {}
        self.weights: dict[tuple[str, bool], tuple[ir.Value, ir.Value]] = {}
        self.rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def constant(self, name: str, values: npt.NDArray[Any]) -> ir.Value:
        """An initializer of that name, made once."""
        if name not in self.constants:
            tensor = ir.tensor(values, name=name)
            value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
            self.graph.register_initializer(value)
            self.constants[name] = value
        return self.constants[name]

    def op(
        self, before: ir.Node, op_type: str, inputs: list[ir.Value | None], *outputs: str, **node: Any
    ) -> list[ir.Value]:
        """One node with outputs of these names, in front of another."""
        made = ir.node(op_type, inputs, name=f"node_{outputs[0]}", num_outputs=len(outputs), **node)
        for value, name in zip(made.outputs, outputs, strict=True):
            value.name = name
        self.graph.insert_before(before, made)
        return list(made.outputs)

    def quantised_rows(self, value: ir.Value, before: ir.Node) -> tuple[ir.Value, ir.Value]:
        """`[rows, C]` as uint8 `[rows, C]` and one scale per row `[rows]`."""
        if value not in self.rows:
            name = f"{value.name}_int8"
            rows, scale = self.op(before, rounding.SPEC.name, [value], name, f"{name}_scale", domain=DOMAIN)
            rows.type, rows.shape = ir.TensorType(ir.DataType.UINT8), value.shape
            scale.type = ir.TensorType(ir.DataType.FLOAT)
            self.rows[value] = rows, scale
        return self.rows[value]

    def quantised_weight(self, weight: ir.Value, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """The weight as int8 `[in, out]` and its scales `[out]`."""
        key = (str(weight.name), transposed)
        if key not in self.weights:
            values = array(weight)
            integers, scale = quantise_weight(values.T if transposed else values)
            # One weight may be read both ways, as tied weights are.
            name = f"{weight.name}_turned" if (weight.name, not transposed) in self.weights else weight.name
            self.weights[key] = (
                self.constant(f"{name}_int8", np.ascontiguousarray(integers)),
                self.constant(f"{name}_scale", scale),
            )
        return self.weights[key]

    def replace(self, layer: LinearLayer) -> None:
        """Puts the int8 form of a linear layer in its place, with what follows it."""
        node, last = layer.nodes[0], layer.nodes[-1]
        rows, weight = node.inputs[:2]
        assert rows is not None
        assert weight is not None
        output = last.outputs[0]
        integers, scale = self.quantised_rows(rows, node)
        multiplier, channels = self.quantised_weight(weight, is_transposed(node))
        middle = self.constant("int8_zero_point", np.array(ZERO_POINT, np.uint8))
        [sums] = self.op(node, "MatMulInteger", [integers, multiplier, middle], f"{node.outputs[0].name}_sums")
        sums.type, sums.shape = ir.TensorType(ir.DataType.INT32), node.outputs[0].shape
        inputs = [sums, scale, channels, layer.bias, layer.residual]
        attributes: dict[str, str | float] = {"activation": layer.activation}
        if layer.norm is not None:
            inputs += layer.norm.inputs[1:3]
            attributes["epsilon"] = epsilon_of(layer.norm)
        while inputs[-1] is None:
            inputs.pop()
        name = f"{output.name}_int8"
        if output.is_graph_output():  # it keeps its name
            name, output.name = str(output.name), f"{output.name}_replaced"
        [result] = self.op(last, product.SPEC.name, inputs, name, domain=DOMAIN, attributes=attributes)
        result.type, result.shape = output.type, output.shape
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        self.graph.remove(layer.nodes[::-1], safe=True)

    def join(self, rounded: ir.Node) -> bool:
        """Rounds a product within its own node where nothing but the rounding reads it."""
        made = rounded.inputs[0].producer() if rounded.inputs[0] is not None else None
        if made is None or made.domain != DOMAIN or made.op_type != product.SPEC.name:
            return False
        [value] = made.outputs
        if len(value.uses()) > 1 or value.is_graph_output() or len(made.inputs) > len(requantized.SPEC.inputs):
            return False
        names = [str(output.name) for output in rounded.outputs]
        attributes = {"activation": made.attributes["activation"].as_string()}
        outputs = self.op(
            rounded, requantized.SPEC.name, list(made.inputs), *names, domain=DOMAIN, attributes=attributes
        )
        for old, new in zip(rounded.outputs, outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            ir.convenience.replace_all_uses_with(old, new)
        self.graph.remove([rounded, made], safe=True)
        return True


def array(weight: ir.Value) -> npt.NDArray[np.float32]:
    """A constant's values."""
    assert weight.const_value is not None
    values: npt.NDArray[np.float32] = weight.const_value.numpy()
    return values


def head(graph: ir.Graph) -> set[ir.Node]:
    """The linear layer that yields the logits, and the nodes behind it."""
    nodes: set[ir.Node] = set()
    pending = [value.producer() for value in graph.outputs if value.name == "logits"]
    while pending:
        node = pending.pop()
        if node is None or node in nodes or node.domain == DOMAIN:
            continue
        nodes.add(node)
        if node.op_type in TAIL:
            pending += [value.producer() for value in node.inputs if value is not None]
    return nodes


def quantise(model: ir.Model) -> dict[str, int]:
    """Replaces every linear layer but the one that yields the logits, and tells attention that can to use int8.

    Args:
        model: from `trace`, fp32, changed in place. Functions that it has are not attached to the new nodes.

    Returns:
        How many nodes of operators the graph has more, by the operators' keys.

    Raises:
        ExportError: there is no linear layer.
    """
    graph = model.graph
    kept = head(graph)
    layers = [node for node in graph if is_linear(node) and node not in kept]
    if not layers:
        raise ExportError("precision 'int8' needs linear layers with constant weights, and the graph has none")
    quantiser = _Quantiser(graph)
    for node in layers:
        quantiser.replace(LinearLayer.of(node))
    joined = sum(quantiser.join(node) for node in list(graph) if node.op_type == rounding.SPEC.name)
    for node in graph:
        if node.domain == DOMAIN and node.op_type in IN_INT8:
            node.attributes.add(ir.AttrInt64(INT8_PRODUCTS.name, 1))
    used = {value for node in graph.all_nodes() for value in node.inputs} | set(graph.outputs)
    for name, value in list(graph.initializers.items()):
        if value not in used:
            del graph.initializers[name]
    model.opset_imports.setdefault(DOMAIN, rounding.SPEC.version)
    apart = {rounding.SPEC.key: len(quantiser.rows) - joined, product.SPEC.key: len(layers) - joined}
    return apart | ({requantized.SPEC.key: joined} if joined else {})
