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


def function(key: str, inputs: list[str], opset: int, dtype: int = TensorProto.FLOAT) -> onnx.FunctionProto:
    """The function that stands in for one operator.

    Args:
        key: the operator's key.
        inputs: names of the inputs that the model's nodes have, empty for one that is left out before another.
        opset: the model's opset, which the body shares.
        dtype: ONNX type of the data tensors; the body computes in fp32 whatever it is.

    Returns:
        A function of the operator's domain, name and inputs.
    """
    body = Body(OPERATOR_BY_KEY[key], opset)
    has = [name for name in inputs if name]
    part(key, "fallback").build(body, has)
    if dtype != TensorProto.FLOAT:
        compute_in_fp32(body, has, dtype)
    # A function's inputs all have names; what a node leaves out, the body does not read.
    return body.function([name or f"absent_{index}" for index, name in enumerate(inputs)])


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
    results = [item.name for item in operator.outputs if item.data]
    back = [helper.make_node("Cast", [f"{name}_fp32"], [name], to=dtype) for name in results]
    body.nodes = [*cast, *body.nodes, *back]


def attach(model: ir.Model) -> None:
    """Attaches to a finished model one function for each operator of the domain that it uses."""
    by_name = {operator.name: key for key, operator in OPERATOR_BY_KEY.items()}
    for node in list(model.graph):
        key = by_name.get(node.op_type) if node.domain == DOMAIN else None
        if key is None:
            continue
        pairs = zip(OPERATOR_BY_KEY[key].inputs, node.inputs, strict=False)
        names = ["" if value is None else item.name for item, value in pairs]
        dtype = int(node.outputs[0].dtype or ir.DataType.FLOAT)
        built = ir.serde.deserialize_function(function(key, names, model.opset_imports[""], dtype))
        model.functions[built.identifier()] = built
