"""The same model with exact softmax attention: what YOSO's speed has to be compared with.

Every `YosoAttention` node of the file becomes `SoftmaxAttention` on the same projections. The weights were not trained
for it, so the answers mean nothing; the time is that of an exact model of this shape.
"""

from collections.abc import Iterator
from pathlib import Path

from attenuator.clients.graph import (
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_DOMAIN,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    message,
    read_node,
    spans,
)
from attenuator.ops import DOMAIN, OPERATORS

BYTES_WIRE = 2
BY_KEY = {operator.key: operator for operator in OPERATORS}
YOSO, SOFTMAX = BY_KEY["yoso"], BY_KEY["softmax"]
KEPT_ATTRIBUTES = {attribute.name for attribute in SOFTMAX.attributes}


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES_WIRE) + _varint(len(content)) + content


def _softmax_node(data: memoryview) -> bytes:
    """The encoded node, YOSO replaced by softmax; any other node as it is."""
    node = read_node(data)
    if node.op_type != YOSO.name or node.domain != DOMAIN:
        return bytes(data)
    by_name = dict(zip((tensor.name for tensor in YOSO.inputs), node.inputs, strict=False))
    parts = [_field(NODE_INPUT, by_name[tensor.name].encode()) for tensor in SOFTMAX.inputs]
    parts += [_field(NODE_OUTPUT, node.outputs[0].encode())]
    for number, value, raw in spans(data):
        if number == NODE_NAME or number == NODE_ATTRIBUTE and _name(message(value)) in KEPT_ATTRIBUTES:
            parts.append(bytes(raw))
    parts += [_field(NODE_OP_TYPE, SOFTMAX.name.encode()), _field(NODE_DOMAIN, DOMAIN.encode())]
    return b"".join(parts)


def _name(attribute: memoryview) -> str:
    return next(bytes(message(value)).decode() for number, value, _ in spans(attribute) if number == 1)


def _graph(data: memoryview) -> Iterator[bytes]:
    for number, value, raw in spans(data):
        yield _field(GRAPH_NODE, _softmax_node(message(value))) if number == GRAPH_NODE else bytes(raw)


def write_softmax_model(source: Path, target: Path) -> None:
    """Writes a model with exact softmax attention where `source` has YOSO attention.

    Args:
        source: `model.onnx` of a bundle; weights that lie beside it must also lie beside the target.
        target: file to write.
    """
    parts = []
    for number, value, raw in spans(memoryview(source.read_bytes())):
        parts.append(_field(MODEL_GRAPH, b"".join(_graph(message(value)))) if number == MODEL_GRAPH else bytes(raw))
    target.write_bytes(b"".join(parts))
