"""Protobuf's wire format: what it takes to read, write or change an ONNX file without the onnx package.

Reading follows the encoded lengths and does not recurse, so that neither a large nor a deeply nested file does harm.
Field numbers are those of onnx.proto3, which never change.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MODEL_IR, MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 1, 7, 8, 25
OPSET_DOMAIN, OPSET_VERSION = 1, 2
FUNCTION_NAME, FUNCTION_NODE, FUNCTION_DOMAIN, FUNCTION_DEFAULT = 1, 7, 10, 11
GRAPH_NODE, GRAPH_NAME, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE = 1, 2, 5, 11, 12, 15
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_STRING = 1, 2, 3, 4
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 5, 6, 10, 11
ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES = 22, 23
TENSOR_DIMS, TENSOR_KIND, TENSOR_NAME, TENSOR_EXTERNAL = 1, 2, 8, 13
SPARSE_VALUES, SPARSE_INDICES = 1, 2
ENTRY_KEY, ENTRY_VALUE = 1, 2  # of external data
VALUE_NAME, VALUE_TYPE = 1, 2  # of a graph's input or output
TYPE_TENSOR = 1
TENSOR_TYPE_ELEMENT, TENSOR_TYPE_SHAPE = 1, 2
SHAPE_DIM, DIM_VALUE = 1, 1

Value = int | memoryview


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number in base 128, lowest digits first, and where it ends.

    Raises:
        ValueError: it does not end.
    """
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("not an ONNX file: a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def encoded_fields(data: memoryview) -> Iterator[tuple[int, Value, memoryview]]:
    """Number, value and whole encoding of each field of a message; texts and messages as slices.

    Raises:
        ValueError: it is not a message.
    """
    at = 0
    while at < len(data):
        start = at
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield number, value, data[start:at]
            continue
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"not an ONNX file: a field has wire type {kind}, must be 0, 1, 2 or 5")
        if at + size > len(data):
            raise ValueError("not an ONNX file: a field is cut off")
        yield number, data[at : at + size], data[start : at + size]
        at += size


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message; see `encoded_fields`."""
    return ((number, value) for number, value, _ in encoded_fields(data))


def varint(value: int) -> bytes:
    """A number in base 128, lowest digits first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3) + varint(value)


def content_field(field: int, value: bytes) -> bytes:
    """A field that holds a text or a message."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value
