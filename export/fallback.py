"""ONNX functions named like the operators: what a runtime without the operator library computes.

Each body (`ops/<operator>/fallback.py`) is the operator's exact value in standard ONNX operators. With the library
registered ONNX Runtime uses its kernels and drops the functions. They are attached last of all, since every tool that
rewrites a graph inlines them.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.ops import DOMAIN, part
from attenuator.ops.fallback import Body

__all__ = ["attach", "function"]


def function(
    key: str, inputs: list[str], outputs: list[str], opset: int, dtype: int = TensorProto.FLOAT
) -> onnx.FunctionProto:
    """The function that stands in for the nodes of one operator that have the same inputs and outputs.

    Args:
        key: the operator's key.
        inputs: names of the inputs that these nodes have, empty for one that is left out before another.
        outputs: names of their outputs.
        opset: the model's opset, which the body shares.
        dtype: ONNX type of the data tensors; the body computes in fp32 whatever it is.

    Returns:
        A function of the operator's domain and name, with these inputs and outputs. Its overload names the optional
        ones among them, so that a model may have several.
    """
    operator = OPERATOR_BY_KEY[key]
    body = Body(operator, opset, outputs)
    has = [name for name in inputs if name]
    part(key, "fallback").build(body, has)
    if dtype != TensorProto.FLOAT:
        compute_in_fp32(body, has, dtype)
    # A function's inputs all have names; what a node leaves out, the body does not read.
    names = [name or f"absent_{index}" for index, name in enumerate(inputs)]
    optional = [item.name for item in (*operator.inputs, *operator.outputs) if item.optional]
    return body.function(names, "_".join(name for name in optional if name in (*inputs, *outputs)))


def compute_in_fp32(body: Body, inputs: list[str], dtype: int) -> None:
    """Casts the data tensors of a finished body on their way in and out."""
    operator = body.operator
    data = {item.name for item in (*operator.inputs, *operator.outputs) if item.data}
    for node in body.nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = f"{name}_fp32" if name in data else name
    taken = [name for name in inputs if name in data]
    cast = [helper.make_node("Cast", [name], [f"{name}_fp32"], to=TensorProto.FLOAT) for name in taken]
    results = [item.name for item in operator.outputs if item.data and item.name in body.outputs]
    back = [helper.make_node("Cast", [f"{name}_fp32"], [name], to=dtype) for name in results]
    body.nodes = [*cast, *body.nodes, *back]


def attach(model: ir.Model) -> None:
    """Attaches to a finished model one function for each operator of the domain that it uses, and each set of inputs.

    Nodes name the overload of the function that has their inputs and outputs. The operator library's kernels are found
    whatever it is.
    """
    by_name = {operator.name: key for key, operator in OPERATOR_BY_KEY.items()}
    for node in list(model.graph):
        key = by_name.get(node.op_type) if node.domain == DOMAIN else None
        if key is None:
            continue
        operator = OPERATOR_BY_KEY[key]
        pairs = zip(operator.inputs, node.inputs, strict=False)
        inputs = ["" if value is None else item.name for item, value in pairs]
        outputs = [item.name for item in operator.outputs][: len(node.outputs)]
        dtype = int(node.outputs[0].dtype or ir.DataType.FLOAT)
        built = ir.serde.deserialize_function(function(key, inputs, outputs, model.opset_imports[""], dtype))
        node.overload = built.overload
        model.functions[built.identifier()] = built
