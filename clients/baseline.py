"""The same model with exact softmax attention: what YOSO's speed has to be compared with.

Every `YosoAttention` node of the file becomes `SoftmaxAttention` on the same projections. The weights were not trained
for it, so the answers mean nothing; the time is that of an exact model of this shape.
"""

from collections.abc import Iterator
from pathlib import Path

from attenuator.ops import DOMAIN, OPERATORS
from attenuator.runtime.wire import content_field

# Field numbers of onnx.proto, wire types of protocol buffers.
MODEL_GRAPH, GRAPH_NODE = 7, 1
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME = 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

BY_KEY = {operator.key: operator for operator in OPERATORS}
YOSO, SOFTMAX = BY_KEY["yoso"], BY_KEY["softmax"]
KEPT_ATTRIBUTES = {attribute.name for attribute in SOFTMAX.attributes}


def _number(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Number, content, and the field as it is encoded, of each field of a message."""
    at = 0
    while at < len(data):
        start = at
        key, at = _number(data, at)
        content = at
        if key & 7 == VARINT:
            _, at = _number(data, at)
        elif key & 7 == BYTES:
            size, content = _number(data, at)
            at = content + size
        else:
            at += 8 if key & 7 == FIXED64 else 4
        yield key >> 3, data[content:at], data[start:at]


def _text(data: memoryview, wanted: int) -> str:
    return next((bytes(content).decode() for number, content, _ in _fields(data) if number == wanted), "")


def _softmax_node(data: memoryview) -> bytes:
    """The encoded node, YOSO replaced by softmax; any other node as it is."""
    if _text(data, NODE_OP_TYPE) != YOSO.name or _text(data, NODE_DOMAIN) != DOMAIN:
        return bytes(data)
    parts = []
    names = (bytes(content) for number, content, _ in _fields(data) if number == NODE_INPUT)
    by_input = dict(zip((tensor.name for tensor in YOSO.inputs), names, strict=False))
    parts += [content_field(NODE_INPUT, by_input[tensor.name]) for tensor in SOFTMAX.inputs]
    for number, content, raw in _fields(data):
        kept = number == NODE_ATTRIBUTE and _text(content, ATTRIBUTE_NAME) in KEPT_ATTRIBUTES
        if kept or number in (NODE_OUTPUT, NODE_NAME, NODE_DOMAIN):
            parts.append(bytes(raw))
    return b"".join([*parts, content_field(NODE_OP_TYPE, SOFTMAX.name.encode())])


def _graph(data: memoryview) -> Iterator[bytes]:
    for number, content, raw in _fields(data):
        yield content_field(GRAPH_NODE, _softmax_node(content)) if number == GRAPH_NODE else bytes(raw)


def write_softmax_model(source: Path, target: Path) -> None:
    """Writes a model with exact softmax attention where `source` has YOSO attention.

    Args:
        source: `model.onnx` of a checked bundle; weights that lie beside it must also lie beside the target.
        target: file to write.
    """
    parts = []
    for number, content, raw in _fields(memoryview(source.read_bytes())):
        parts.append(content_field(MODEL_GRAPH, b"".join(_graph(content))) if number == MODEL_GRAPH else bytes(raw))
    target.write_bytes(b"".join(parts))
