"""Writes protobuf's wire format: what it takes to make or change an ONNX file without the onnx package."""

BYTES = 2


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
