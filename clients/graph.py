"""Reads an ONNX file's nodes and shapes with the standard library: enough to count a model's work.

The `onnx` package is an export dependency and weighs more than all of serving; what is needed of it here is a walk over
protocol-buffer fields (encoding: protobuf.dev, "Encoding"; field numbers: `onnx.proto`). Weights are skipped, not read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attenuator.errors import BundleError

Value = int | memoryview
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# onnx.proto
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_VALUE_INFO = 1, 5, 11, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_STRING, ATTRIBUTE_INTS = 1, 2, 3, 4, 8
TENSOR_DIMS, TENSOR_NAME = 1, 8
INFO_NAME, INFO_TYPE, TYPE_TENSOR, TENSOR_SHAPE, SHAPE_DIM, DIM_VALUE = 1, 2, 1, 2, 1, 1


@dataclass(frozen=True, slots=True)
class Node:
    """One node; `attributes` holds numbers, texts and tuples of integers."""

    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, int | float | str | tuple[int, ...]]


@dataclass(slots=True)
class Graph:
    """Nodes in execution order.

    Attributes:
        nodes: in execution order.
        inputs: names of the graph's inputs.
        initializers: shape by name.
        shapes: shape by name where the file states it; None is a symbolic axis.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    initializers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number has more than ten bytes")


def spans(data: memoryview) -> Iterator[tuple[int, Value, memoryview]]:
    """The fields of one message: number, value (bytes stay unread), and the field as it is encoded."""
    at, end = 0, len(data)
    while at < end:
        start = at
        key, at = _varint(data, at)
        kind = key & 7
        value: Value
        if kind == VARINT:
            value, at = _varint(data, at)
        else:
            if kind == BYTES:
                size, at = _varint(data, at)
            elif kind in (FIXED64, FIXED32):
                size = 8 if kind == FIXED64 else 4
            else:
                raise ValueError(f"unknown wire type {kind}")
            if at + size > end:
                raise ValueError("it ends early")
            value, at = data[at : at + size], at + size
        yield key >> 3, value, data[start:at]


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    return ((number, value) for number, value, _ in spans(data))


def message(value: Value) -> memoryview:
    """A field's value as a message of its own."""
    if not isinstance(value, memoryview):
        raise ValueError("a message was expected")
    return value


def _text(value: Value) -> str:
    return bytes(message(value)).decode()


def _signed(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >> 63 else value


def _integers(value: Value) -> Iterator[int]:
    """A repeated integer field, one by one or packed."""
    if isinstance(value, int):
        yield _signed(value)
        return
    data, at = message(value), 0
    while at < len(data):
        number, at = _varint(data, at)
        yield _signed(number)


def _attribute(data: memoryview) -> tuple[str, int | float | str | tuple[int, ...] | None]:
    name = ""
    value: int | float | str | tuple[int, ...] | None = None
    integers: list[int] = []
    for number, item in _fields(data):
        if number == ATTRIBUTE_NAME:
            name = _text(item)
        elif number == ATTRIBUTE_FLOAT:
            value = float(struct.unpack("<f", message(item))[0])
        elif number == ATTRIBUTE_INT:
            value = _signed(item)
        elif number == ATTRIBUTE_STRING:
            value = bytes(message(item)).decode(errors="replace")
        elif number == ATTRIBUTE_INTS:
            integers += _integers(item)
    return name, tuple(integers) if integers else value


def read_node(data: memoryview) -> Node:
    """Reads one node."""
    inputs: list[str] = []
    outputs: list[str] = []
    op_type = domain = ""
    attributes: dict[str, int | float | str | tuple[int, ...]] = {}
    for number, value in _fields(data):
        if number == NODE_INPUT:
            inputs.append(_text(value))
        elif number == NODE_OUTPUT:
            outputs.append(_text(value))
        elif number == NODE_OP_TYPE:
            op_type = _text(value)
        elif number == NODE_DOMAIN:
            domain = _text(value)
        elif number == NODE_ATTRIBUTE:
            name, content = _attribute(message(value))
            if content is not None:
                attributes[name] = content
    return Node(op_type, domain, tuple(inputs), tuple(outputs), attributes)


def _initializer(data: memoryview) -> tuple[str, tuple[int, ...]]:
    name, dims = "", []
    for number, value in _fields(data):
        if number == TENSOR_NAME:
            name = _text(value)
        elif number == TENSOR_DIMS:
            dims += list(_integers(value))
    return name, tuple(dims)


def _value_info(data: memoryview) -> tuple[str, tuple[int | None, ...]]:
    name, shape = "", []
    for number, value in _fields(data):
        if number == INFO_NAME:
            name = _text(value)
        elif number == INFO_TYPE:
            tensors = [message(item) for key, item in _fields(message(value)) if key == TYPE_TENSOR]
            shapes = [message(item) for tensor in tensors for key, item in _fields(tensor) if key == TENSOR_SHAPE]
            dims = [message(item) for each in shapes for key, item in _fields(each) if key == SHAPE_DIM]
            for dim in dims:
                sizes = [_signed(item) for key, item in _fields(dim) if key == DIM_VALUE]
                shape.append(sizes[0] if sizes else None)
    return name, tuple(shape)


def read_graph(path: Path) -> Graph:
    """Reads the main graph of an ONNX file; functions and weights are passed over.

    Raises:
        BundleError: the file is missing or is not ONNX.
    """
    graph = Graph()
    try:
        data = memoryview(path.read_bytes())
        parts = [part for number, value in _fields(data) if number == MODEL_GRAPH for part in _fields(message(value))]
        for number, value in parts:
            if number == GRAPH_NODE:
                graph.nodes.append(read_node(message(value)))
            elif number == GRAPH_INITIALIZER:
                name, dims = _initializer(message(value))
                graph.initializers[name] = dims
            elif number in (GRAPH_INPUT, GRAPH_VALUE_INFO):
                name, shape = _value_info(message(value))
                graph.shapes[name] = shape
                if number == GRAPH_INPUT:
                    graph.inputs.append(name)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, IndexError, struct.error) as error:
        raise BundleError(f"{path} is not an ONNX file: {error}") from None
    if not graph.nodes:
        raise BundleError(f"{path} is not an ONNX file: it has no nodes")
    return graph
