"""fp16 and bf16: the PyTorch model is cast before it is traced, and what can be proven without a GPU is proven.

The bundles are for CUDA: on the CPU the operators take fp32 alone. What PyTorch computes in half precision the graph
does too (linear layers, norms, activations), but for nodes that ONNX Runtime's CUDA provider has in fp32 alone; the
operators add up in fp32, rotary and sinusoidal positions are computed in fp32 and rounded once, and logits leave as
fp32.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from attenuator.errors import ExportError
from attenuator.export.cuda_kernels import KERNELS
from attenuator.export.encoder import Encoder
from attenuator.precision import PRECISIONS, PrecisionName

__all__ = ["DTYPES", "cast", "rounded", "widen_unsupported", "widened", "without_kernel"]

DTYPES = {name: getattr(torch, row.torch_dtype) for name, row in PRECISIONS.items() if row.half}
IR_DTYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def cast(model: nn.Module, precision: PrecisionName) -> None:
    """Casts a model's weights in place, as `model.half()` does.

    Raises:
        ExportError: a weight is beyond the range of the precision.
    """
    dtype = DTYPES[precision]
    for name, parameter in model.named_parameters():
        if torch.isfinite(parameter).all() and not torch.isfinite(parameter.to(dtype)).all():
            raise ExportError(f"weight '{name}' is beyond the range of precision '{precision}'; use bf16 or fp32")
    model.to(dtype)


def rounded(model: nn.Module, precision: PrecisionName) -> nn.Module:
    """A copy whose weights are rounded to the precision and that computes in fp32.

    Frequencies of positions stay as they are, and so does the factor on the own encoder's: the graph has the table.
    """
    copied = copy.deepcopy(model)
    kept = copied.positions.scale if isinstance(copied, Encoder) else None
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter is not kept:
                parameter.copy_(parameter.to(DTYPES[precision]).to(parameter.dtype))
    return copied


def without_kernel(graph: ir.Graph, precision: PrecisionName) -> list[ir.Node]:
    """The nodes of half precision that ONNX Runtime's CUDA provider has no kernel for; see `cuda_kernels`."""
    return [
        node
        for node in graph.all_nodes()
        if node.domain in ("", "ai.onnx")
        and node.op_type not in KERNELS[precision]
        and any(value is not None and value.dtype in IR_DTYPES for value in (*node.inputs, *node.outputs))
    ]


def widen_unsupported(graph: ir.Graph, precision: PrecisionName) -> int:
    """Computes in fp32, between casts, what the CUDA provider does not compute in half precision.

    Args:
        graph: from `trace`, of a model that was cast; changed in place.
        precision: of the graph.

    Returns:
        How many nodes compute in fp32 now.
    """
    nodes = without_kernel(graph, precision)
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in IR_DTYPES:
                wide = cast_node(value, f"{node.name}_input_{index}", ir.DataType.FLOAT)
                graph.insert_before(node, wide)
                node.replace_input_with(index, wide.outputs[0])
        for index, value in enumerate(node.outputs):
            if value.dtype in IR_DTYPES:
                narrow = cast_node(value, f"{node.name}_output_{index}", value.dtype)
                ir.convenience.replace_all_uses_with(value, narrow.outputs[0])
                narrow.replace_input_with(0, value)
                value.type = ir.TensorType(ir.DataType.FLOAT)
                graph.insert_after(node, narrow)
    return len(nodes)


def cast_node(value: ir.Value, name: str, dtype: ir.DataType) -> ir.Node:
    """A Cast of a value, not yet in the graph."""
    node = ir.node("Cast", [value], attributes={"to": int(dtype)}, name=f"{name}_cast")
    node.outputs[0].name = name
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), value.shape
    return node


def widened(model: ir.Model) -> ir.Model:
    """The same graph with every tensor of half precision made fp32, its weights rounded as they are.

    Which nodes are there and how they are connected does not change, so that an error in the graph shows on the CPU,
    where ONNX Runtime has no bf16 arithmetic and the operators take fp32.

    Args:
        model: from `trace`, without functions.

    Returns:
        A copy.
    """
    wide: ir.Model = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    graph = wide.graph
    for value in graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in IR_DTYPES:
            value.const_value = as_float(value.const_value, value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in IR_DTYPES:
                node.attributes[name] = ir.AttrTensor(name, as_float(attribute.as_tensor(), None))
        if node.op_type == "Cast" and node.attributes["to"].as_int() in IR_DTYPES:
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        for output in node.outputs:
            if output.dtype in IR_DTYPES:
                output.type = ir.TensorType(ir.DataType.FLOAT)
    return wide


def as_float(tensor: Any, name: str | None) -> ir.Tensor:
    """The same values as fp32."""
    return ir.tensor(tensor.numpy().astype(np.float32), name=name)
