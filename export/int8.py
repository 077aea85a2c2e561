"""int8 linear layers in a finished graph: activations quantised row by row, weights per output channel.

A linear layer y = x W + b becomes

    s_t = max_c |x_tc| / 127                            one scale per token
    q   = round(x / s) + 128                            uint8, zero point 128
    y   = ((q - 128) V) s w + b                         MatMulInteger, V int8 in [-63, 63], one w a channel

Every scale comes from one row, and integer sums are exact in any order, so that a row's bits depend on nothing else in
the batch. ONNX Runtime's own dynamic quantisation takes one scale for the whole batch instead. Two more of its habits
shape the nodes: on x86 only uint8 activations have a fast kernel, int8 ones run ten times slower; and a product that is
cast and multiplied by (s w) is fused into one node that multiplies the bias by s as well. DequantizeLinear with a scale
a row computes the same, and nothing fuses it.

Weights have 7 bits: without VNNI the kernels add pairs of products of uint8 and int8 in 16 bits, where 2 * 255 * 64
just fits and 8-bit weights saturate.

A batch without any token does not run: ONNX Runtime reduces `[0, C]` to `[0, C]`. The runtime never asks for one.

Attention that can compute its products in int8 is told so by an attribute of its node. The layer that yields the logits
stays fp32, as do embeddings, norms, other attention and value projections that are an attention operator's own weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from attenuator.errors import ExportError
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.spec import INT8_PRODUCTS

__all__ = ["ACTIVATION_HIGH", "WEIGHT_HIGH", "ZERO_POINT", "quantise", "quantise_weight"]

ACTIVATION_HIGH = 127
WEIGHT_HIGH = 63
ZERO_POINT = 128
# Added to every scale: lost in rounding unless the row is zero (or subnormal), whose scale must not be 0.
TINY = 1e-30
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

    def op(self, before: ir.Node, name: str, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """One node with one output of that name, in front of another."""
        node = ir.node(op_type, inputs, attributes=attributes, name=f"node_{name}")
        node.outputs[0].name = name
        self.graph.insert_before(before, node)
        return node.outputs[0]

    def quantised_rows(self, value: ir.Value, before: ir.Node) -> tuple[ir.Value, ir.Value]:
        """`[rows, C]` as uint8 `[rows, C]` and one scale per row `[rows]`."""
        if value not in self.rows:
            name = f"{value.name}_int8"
            magnitude = self.op(before, f"{name}_magnitude", "Abs", value)
            last = self.constant("int8_last_axis", np.array([-1], np.int64))
            high = self.op(before, f"{name}_high", "ReduceMax", magnitude, last, keepdims=0)
            inverse = self.constant("int8_inverse_high", np.array(1 / ACTIVATION_HIGH, np.float32))
            step = self.op(before, f"{name}_step", "Mul", high, inverse)
            tiny = self.constant("int8_tiny", np.array(TINY, np.float32))
            floored = self.op(before, f"{name}_floored", "Add", step, tiny)
            # ReduceMax may lose a NaN; a sum does not. Adds 0 to the scale of a finite row.
            total = self.op(before, f"{name}_total", "ReduceSum", magnitude, last, keepdims=0)
            zero = self.constant("int8_zero", np.array(0, np.float32))
            check = self.op(before, f"{name}_check", "Mul", total, zero)
            scale = self.op(before, f"{name}_scale", "Add", floored, check)
            size = self.op(before, f"{name}_size", "Shape", scale)
            middle = ir.tensor(np.array([ZERO_POINT], np.uint8))
            zeros = self.op(before, f"{name}_zero_points", "ConstantOfShape", size, value=middle)
            rows = self.op(before, name, "QuantizeLinear", value, scale, zeros, axis=0)
            self.rows[value] = rows, scale
        return self.rows[value]

    def quantised_weight(self, weight: ir.Value, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """The weight as int8 `[in, out]` and its scales `[out]`."""
        key = (str(weight.name), transposed)
        if key not in self.weights:
            values = array(weight)
            integers, scale = quantise_weight(values.T if transposed else values)
            self.weights[key] = (
                self.constant(f"{weight.name}_int8", np.ascontiguousarray(integers)),
                self.constant(f"{weight.name}_scale", scale),
            )
        return self.weights[key]

    def replace(self, node: ir.Node) -> None:
        """Puts the int8 form of a linear layer in its place."""
        rows, weight, *bias = (value for value in node.inputs if value is not None)
        output = node.outputs[0]
        integers, scale = self.quantised_rows(rows, node)
        multiplier, channels = self.quantised_weight(weight, is_transposed(node))
        middle = self.constant("int8_zero_point", np.array(ZERO_POINT, np.uint8))
        sums = self.op(node, f"{output.name}_sums", "MatMulInteger", integers, multiplier, middle)
        real = self.op(node, f"{output.name}_real", "DequantizeLinear", sums, scale, axis=0)
        result = self.op(node, f"{output.name}_scaled", "Mul", real, channels)
        if bias:
            result = self.op(node, f"{output.name}_biased", "Add", result, bias[0])
        result.type, result.shape = output.type, output.shape
        ir.convenience.replace_all_uses_with(output, result)
        self.graph.remove(node, safe=True)


def array(weight: ir.Value) -> npt.NDArray[np.float32]:
    """A constant's values."""
    assert weight.const_value is not None
    values: npt.NDArray[np.float32] = weight.const_value.numpy()
    return values


def is_transposed(node: ir.Node) -> bool:
    """Whether a linear layer holds its weight as `[out, in]`."""
    attribute = node.attributes.get("transB")
    return attribute is not None and bool(attribute.as_int())


def is_linear(node: ir.Node) -> bool:
    """Whether a node multiplies rows `[rows, in]` by a constant fp32 weight."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Gemm"):
        return False
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return False
    plain = all(node.attributes[name].as_float() == 1.0 for name in ("alpha", "beta") if name in node.attributes)
    untransposed = "transA" not in node.attributes or node.attributes["transA"].as_int() == 0
    return weight.const_value.shape.rank() == 2 and plain and untransposed


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


def quantise(model: ir.Model) -> int:
    """Replaces every linear layer but the one that yields the logits, and tells attention that can to use int8.

    Args:
        model: from `trace`, fp32, changed in place.

    Returns:
        How many linear layers are int8 now.

    Raises:
        ExportError: there is none.
    """
    graph = model.graph
    kept = head(graph)
    layers = [node for node in graph if is_linear(node) and node not in kept]
    if not layers:
        raise ExportError("precision 'int8' needs linear layers with constant weights, and the graph has none")
    quantiser = _Quantiser(graph)
    for node in layers:
        quantiser.replace(node)
    for node in graph:
        if node.domain == DOMAIN and node.op_type in IN_INT8:
            node.attributes.add(ir.AttrInt64(INT8_PRODUCTS.name, 1))
    used = {value for node in graph.all_nodes() for value in node.inputs} | set(graph.outputs)
    for name, value in list(graph.initializers.items()):
        if value not in used:
            del graph.initializers[name]
    return len(layers)
