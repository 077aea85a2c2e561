"""What is read off an ONNX file: by the right field numbers, and wherever in the file it stands."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, GraphProto, SparseTensorProto, TensorProto, helper

from attenuator.runtime import wire
from attenuator.runtime.graph import read_graph

TENSOR_TYPE = onnx.TypeProto.Tensor
# message, and its fields' names by those of wire.py
FIELDS = {
    "MODEL": (onnx.ModelProto, {"IR": "ir_version", "OPSET": "opset_import", "FUNCTION": "functions"}),
    "OPSET": (onnx.OperatorSetIdProto, {}),
    "FUNCTION": (onnx.FunctionProto, {"DEFAULT": "attribute_proto"}),
    "GRAPH": (onnx.GraphProto, {"SPARSE": "sparse_initializer"}),
    "NODE": (onnx.NodeProto, {}),
    "ATTRIBUTE": (
        onnx.AttributeProto,
        {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g"}
        | {"SPARSE": "sparse_tensor", "SPARSES": "sparse_tensors"},
    ),
    "TENSOR": (onnx.TensorProto, {"EXTERNAL": "external_data", "KIND": "data_type"}),
    "SPARSE": (onnx.SparseTensorProto, {}),
    "ENTRY": (onnx.StringStringEntryProto, {}),
    "VALUE": (onnx.ValueInfoProto, {}),
    "TYPE": (onnx.TypeProto, {"TENSOR": "tensor_type"}),
    "TENSOR_TYPE": (TENSOR_TYPE, {"ELEMENT": "elem_type"}),
    "SHAPE": (onnx.TensorShapeProto, {}),
    "DIM": (onnx.TensorShapeProto.Dimension, {"VALUE": "dim_value"}),
}
NUMBERS = [name for name, value in vars(wire).items() if name.rpartition("_")[0] in FIELDS and isinstance(value, int)]


@pytest.mark.parametrize("name", NUMBERS)
def test_field_numbers_are_those_of_onnx(name: str) -> None:
    owner, _, field = name.rpartition("_")
    message, names = FIELDS[owner]
    assert message.DESCRIPTOR.fields_by_name[names.get(field, field.lower())].number == getattr(wire, name)


def test_every_message_is_held_against_onnx() -> None:
    assert {name.rpartition("_")[0] for name in NUMBERS} == set(FIELDS)


def elsewhere(name: str = "weight") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="elsewhere.bin")
    return tensor


def constant(**value: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["made"], **value)


def function(model: onnx.ModelProto, *nodes: onnx.NodeProto, default: AttributeProto | None = None) -> None:
    own = helper.make_function("own", "Made", [], ["made"], nodes, [helper.make_opsetid("", 20)])
    own.attribute_proto.extend([default] if default else [])
    model.functions.append(own)


def nested() -> GraphProto:
    return helper.make_graph([], "inner", [], [], initializer=[elsewhere()])


PLACES: dict[str, Callable[[onnx.ModelProto], object]] = {
    "weight": lambda model: model.graph.initializer.append(elsewhere()),
    "values of a sparse weight": lambda model: model.graph.sparse_initializer.add(values=elsewhere()),
    "indices of a sparse weight": lambda model: model.graph.sparse_initializer.add(indices=elsewhere()),
    "attribute": lambda model: model.graph.node.append(constant(value=elsewhere())),
    "list attribute": lambda model: model.graph.node.append(constant(values=[elsewhere()])),
    "sparse attribute": lambda model: model.graph.node.append(
        constant(sparse_value=SparseTensorProto(values=elsewhere(), dims=[2]))
    ),
    "list of sparse": lambda model: model.graph.node.append(
        constant(values=[SparseTensorProto(indices=elsewhere(), dims=[2])])
    ),
    "nested graph": lambda model: model.graph.node.append(constant(body=nested())),
    "list of graphs": lambda model: model.graph.node.append(constant(bodies=[nested()])),
    "function": lambda model: function(model, constant(value=elsewhere())),
    "default of a function": lambda model: function(model, default=helper.make_attribute("value", elsewhere())),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_external_data_is_found(tmp_path: Path, place: Callable[[onnx.ModelProto], object]) -> None:
    model = helper.make_model(helper.make_graph([], "main", [], []))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert read_graph(path).external == set()
    place(model)
    path.write_bytes(model.SerializeToString())
    assert read_graph(path).external == {"elsewhere.bin"}
