"""The same model with exact softmax attention: what YOSO's speed has to be compared with.

Every `YosoAttention` node of the file becomes `SoftmaxAttention` on the same projections. The weights were not trained
for it, so the answers mean nothing; the time is that of an exact model of this shape.
"""

from collections.abc import Iterator
from pathlib import Path

from attenuator.ops import DOMAIN, OPERATORS
from attenuator.runtime.wire import (
    ATTRIBUTE_NAME,
    GRAPH_NODE,
    MODEL_GRAPH,
    NODE_ATTRIBUTE,
    NODE_DOMAIN,
    NODE_INPUT,
    NODE_NAME,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    Value,
    content_field,
    encoded_fields,
    fields,
)

BY_KEY = {operator.key: operator for operator in OPERATORS}
YOSO, SOFTMAX = BY_KEY["yoso"], BY_KEY["softmax"]
KEPT_ATTRIBUTES = {attribute.name for attribute in SOFTMAX.attributes}


def _text(data: memoryview, wanted: int) -> str:
    return next((_bytes(value).decode() for number, value in fields(data) if number == wanted), "")


def _bytes(value: Value) -> bytes:
    return b"" if isinstance(value, int) else bytes(value)


def _softmax_node(data: memoryview) -> bytes:
    """The encoded node, YOSO replaced by softmax; any other node as it is."""
    if _text(data, NODE_OP_TYPE) != YOSO.name or _text(data, NODE_DOMAIN) != DOMAIN:
        return bytes(data)
    parts = []
    names = (_bytes(value) for number, value in fields(data) if number == NODE_INPUT)
    by_input = dict(zip((tensor.name for tensor in YOSO.inputs), names, strict=False))
    parts += [content_field(NODE_INPUT, by_input[tensor.name]) for tensor in SOFTMAX.inputs]
    for number, value, encoded in encoded_fields(data):
        if number == NODE_ATTRIBUTE and isinstance(value, memoryview):
            kept = _text(value, ATTRIBUTE_NAME) in KEPT_ATTRIBUTES
        else:
            kept = number in (NODE_OUTPUT, NODE_NAME, NODE_DOMAIN)
        if kept:
            parts.append(bytes(encoded))
    return b"".join([*parts, content_field(NODE_OP_TYPE, SOFTMAX.name.encode())])


def _graph(data: memoryview) -> Iterator[bytes]:
    for number, value, encoded in encoded_fields(data):
        if number == GRAPH_NODE and isinstance(value, memoryview):
            yield content_field(GRAPH_NODE, _softmax_node(value))
        else:
            yield bytes(encoded)


def write_softmax_model(source: Path, target: Path) -> None:
    """Writes a model with exact softmax attention where `source` has YOSO attention.

    Args:
        source: `model.onnx` of a checked bundle; weights that lie beside it must also lie beside the target.
        target: file to write.
    """
    parts = []
    for number, value, encoded in encoded_fields(memoryview(source.read_bytes())):
        if number == MODEL_GRAPH and isinstance(value, memoryview):
            parts.append(content_field(MODEL_GRAPH, b"".join(_graph(value))))
        else:
            parts.append(bytes(encoded))
    target.write_bytes(b"".join(parts))
