"""The same model with exact softmax attention: what an approximation's speed has to be compared with.

Every node that computes attention from the baseline operator's inputs (queries, keys, values) becomes that operator, on
the same projections. Where the weights were not trained for it the answers mean nothing; the time is that of an exact
model of this shape. A node with other inputs stays; at its knob's exact value it is exact attention.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from attenuator.ops import BASELINE, DOMAIN, OPERATORS
from attenuator.ops.spec import Operator
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

KEPT_ATTRIBUTES = {attribute.name for attribute in BASELINE.attributes}


def _has_baseline_inputs(operator: Operator) -> bool:
    required = {tensor.name for tensor in BASELINE.inputs if not tensor.optional}
    return required <= {tensor.name for tensor in operator.inputs}


# What a user asks for as the baseline's attention is exact already, and takes its terms' time.
REPLACED = {
    operator.name: operator
    for operator in OPERATORS
    if operator != BASELINE and operator.asked_as != BASELINE.key and _has_baseline_inputs(operator)
}


def has_replaced(op_types: Iterable[str]) -> bool:
    """Whether any of these operators would be replaced in the baseline."""
    return not REPLACED.keys().isdisjoint(op_types)


def _text(data: memoryview, field: int) -> str:
    return next((_bytes(value).decode() for number, value in fields(data) if number == field), "")


def _bytes(value: Value) -> bytes:
    return b"" if isinstance(value, int) else bytes(value)


def _baseline_node(data: memoryview) -> bytes:
    """The encoded node, replaced where it computes attention in another way."""
    operator = REPLACED.get(_text(data, NODE_OP_TYPE))
    if operator is None or _text(data, NODE_DOMAIN) != DOMAIN:
        return bytes(data)
    parts = []
    names = (_bytes(value) for number, value in fields(data) if number == NODE_INPUT)
    by_input = dict(zip((tensor.name for tensor in operator.inputs), names, strict=False))
    inputs = [by_input.get(tensor.name, b"") for tensor in BASELINE.inputs]
    while inputs and not inputs[-1]:
        inputs.pop()
    parts += [content_field(NODE_INPUT, name) for name in inputs]
    for number, value, encoded in encoded_fields(data):
        if number == NODE_ATTRIBUTE and isinstance(value, memoryview):
            kept = _text(value, ATTRIBUTE_NAME) in KEPT_ATTRIBUTES
        else:
            kept = number in (NODE_OUTPUT, NODE_NAME, NODE_DOMAIN)
        if kept:
            parts.append(bytes(encoded))
    return b"".join([*parts, content_field(NODE_OP_TYPE, BASELINE.name.encode())])


def _graph(data: memoryview) -> Iterator[bytes]:
    for number, value, encoded in encoded_fields(data):
        if number == GRAPH_NODE and isinstance(value, memoryview):
            yield content_field(GRAPH_NODE, _baseline_node(value))
        else:
            yield bytes(encoded)


def write_baseline(source: Path, target: Path) -> None:
    """Writes a model with exact softmax attention where `source` approximates it.

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
