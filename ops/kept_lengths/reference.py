"""KeptLengths in NumPy, float64."""

import math

import numpy as np
from numpy.typing import NDArray

# Shares are float32: 0.3 is 0.30000001, of which ten rows would be 3.0000001. A quarter of a float32's last place less
# keeps them at three.
BELOW_ONE = 1 - 2.0**-22


def kept_length(length: int, keep: float, exponent: float = 1.0) -> int:
    """Rows that a sequence keeps: ceil(length * keep^exponent), at least one.

    Args:
        length: rows that it has.
        keep: the knob, above 0, at most 1.
        exponent: the node's attribute.
    """
    if length == 0 or keep == 1:
        return length
    rows = math.ceil(length * math.pow(keep, exponent) * BELOW_ONE)
    return min(max(rows, 1), length)


def kept_lengths(
    cu_seqlens: NDArray[np.int32], keep: NDArray[np.float32], *, exponent: float = 1.0
) -> NDArray[np.int32]:
    """Offsets of the sequences of a packed batch after a selection.

    Args:
        cu_seqlens: [B + 1], offsets before it.
        keep: [B], the knob.
        exponent: of the node; stored as float32.

    Returns:
        [B + 1], offsets after it.
    """
    power = float(np.float32(exponent))
    lengths = [
        kept_length(int(length), float(share), power) for length, share in zip(np.diff(cu_seqlens), keep, strict=True)
    ]
    return np.cumsum([0, *lengths]).astype(np.int32)
