"""Statements of an ONNX file about itself, read before ONNX Runtime is let near it.

A walk over the few fields that matter: which operators, which opsets, which external files, which weight shapes.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attenuator.runtime import wire
from attenuator.runtime.wire import Value, fields, read_varint

MAX_DEPTH = 8  # graphs inside nodes; an exported encoder has none
HALF_TYPES = (10, 16)  # TensorProto's FLOAT16 and BFLOAT16


@dataclass(slots=True)
class Node:
    """A node of the main graph.

    Attributes:
        domain: "" for ONNX's own operators.
        op_type: operator name.
        inputs: names of the values it reads.
        outputs: names of the values it writes.
        attributes: its integer, float and string attributes.
    """

    domain: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, int | float | str]


@dataclass(slots=True)
class Graph:
    """What an ONNX file says about itself.

    Attributes:
        opsets: version by domain.
        nodes: the main graph's nodes.
        other_ops: `(domain, op_type)` of nodes in functions and nested graphs, by the function's `(domain, name)`.
        external: relative paths of external data.
        shapes: dims by initializer name.
        halves: names of initializers of 16-bit floating-point numbers.
    """

    opsets: dict[str, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    other_ops: dict[tuple[str, str], set[tuple[str, str]]] = field(default_factory=dict)
    external: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)


def read_graph(path: Path) -> Graph:
    """Reads an ONNX file.

    Args:
        path: the file; mapped, not copied.

    Returns:
        What it says about itself.

    Raises:
        ValueError: it is not an ONNX file.
    """
    if path.stat().st_size == 0:
        raise ValueError("the file is empty")
    graph = Graph()
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped with its last slice
    _model(memoryview(mapped), graph)
    return graph


def _messages(data: memoryview, field_number: int) -> Iterator[memoryview]:
    for number, value in fields(data):
        if number == field_number and isinstance(value, memoryview):
            yield value


def _text(value: Value) -> str:
    if isinstance(value, int):
        raise ValueError("not an ONNX file: a field has a number, must have a text")
    return bytes(value).decode("utf-8", errors="replace")


def _model(data: memoryview, graph: Graph) -> None:
    for number, value in fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == wire.MODEL_OPSET:
            parts = dict(_fields_copied(value))
            version = parts.get(wire.OPSET_VERSION, 0)
            graph.opsets[str(parts.get(wire.OPSET_DOMAIN, ""))] = version if isinstance(version, int) else 0
        elif number == wire.MODEL_GRAPH:
            _graph(value, graph, None, 0)
        elif number == wire.MODEL_FUNCTION:
            names = dict(_fields_copied(value, only=(wire.FUNCTION_NAME, wire.FUNCTION_DOMAIN)))
            owner = (str(names.get(wire.FUNCTION_DOMAIN, "")), str(names.get(wire.FUNCTION_NAME, "")))
            graph.other_ops.setdefault(owner, set())
            for node in _messages(value, wire.FUNCTION_NODE):
                _node(node, graph, owner, 0)
            for default in _messages(value, wire.FUNCTION_DEFAULT):
                _attribute(default, Node("", "", [], [], {}), graph, owner, 0)


def _fields_copied(data: memoryview, only: tuple[int, ...] = ()) -> Iterator[tuple[int, int | str]]:
    for number, value in fields(data):
        if not only or number in only:
            yield number, value if isinstance(value, int) else _text(value)


def _graph(data: memoryview, graph: Graph, owner: tuple[str, str] | None, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"graphs are nested too deeply, must be at most {MAX_DEPTH} levels")
    for number, value in fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == wire.GRAPH_NODE:
            _node(value, graph, owner, depth)
        elif number == wire.GRAPH_INITIALIZER:
            _tensor(value, graph, main=owner is None)
        elif number == wire.GRAPH_SPARSE:
            _sparse(value, graph)


def _node(data: memoryview, graph: Graph, owner: tuple[str, str] | None, depth: int) -> None:
    node = Node("", "", [], [], {})
    for number, value in fields(data):
        if number == wire.NODE_INPUT:
            node.inputs.append(_text(value))
        elif number == wire.NODE_OUTPUT:
            node.outputs.append(_text(value))
        elif number == wire.NODE_OP_TYPE:
            node.op_type = _text(value)
        elif number == wire.NODE_DOMAIN:
            node.domain = _text(value)
        elif number == wire.NODE_ATTRIBUTE and isinstance(value, memoryview):
            _attribute(value, node, graph, owner, depth)
    if owner is None:
        graph.nodes.append(node)
    else:
        graph.other_ops.setdefault(owner, set()).add((node.domain, node.op_type))


def _attribute(data: memoryview, node: Node, graph: Graph, owner: tuple[str, str] | None, depth: int) -> None:
    name = ""
    content: int | float | str | None = None
    for number, value in fields(data):
        if number == wire.ATTRIBUTE_NAME:
            name = _text(value)
        elif number == wire.ATTRIBUTE_FLOAT and isinstance(value, memoryview) and len(value) == 4:
            [content] = struct.unpack("<f", value)
        elif number == wire.ATTRIBUTE_INT and isinstance(value, int):
            content = value - 2**64 if value >= 2**63 else value
        elif number == wire.ATTRIBUTE_STRING:
            content = _text(value)
        elif number in (wire.ATTRIBUTE_TENSOR, wire.ATTRIBUTE_TENSORS) and isinstance(value, memoryview):
            _tensor(value, graph, main=False)
        elif number in (wire.ATTRIBUTE_SPARSE, wire.ATTRIBUTE_SPARSES) and isinstance(value, memoryview):
            _sparse(value, graph)
        elif number in (wire.ATTRIBUTE_GRAPH, wire.ATTRIBUTE_GRAPHS) and isinstance(value, memoryview):
            _graph(value, graph, owner or ("", "nested graph"), depth + 1)
    if name and content is not None:
        node.attributes[name] = content


def _sparse(data: memoryview, graph: Graph) -> None:
    for part in (wire.SPARSE_VALUES, wire.SPARSE_INDICES):
        for tensor in _messages(data, part):
            _tensor(tensor, graph, main=False)


def _tensor(data: memoryview, graph: Graph, *, main: bool) -> None:
    dims: list[int] = []
    name, data_type = "", 0
    for number, value in fields(data):
        if number == wire.TENSOR_KIND and isinstance(value, int):
            data_type = value
        elif number == wire.TENSOR_DIMS:
            if isinstance(value, int):
                dims.append(value)
            else:  # packed
                at = 0
                while at < len(value):
                    size, at = read_varint(value, at)
                    dims.append(size)
        elif number == wire.TENSOR_NAME:
            name = _text(value)
        elif number == wire.TENSOR_EXTERNAL and isinstance(value, memoryview):
            entry = dict(_fields_copied(value))
            if entry.get(wire.ENTRY_KEY) == "location":
                graph.external.add(str(entry.get(wire.ENTRY_VALUE, "")))
    if main and name:
        graph.shapes[name] = tuple(dims)
        if data_type in HALF_TYPES:
            graph.halves.add(name)
