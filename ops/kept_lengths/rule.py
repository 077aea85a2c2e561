"""How many rows of a sequence a selection keeps; the reference and the predicted cost read it. Standard library only.

operator.cc has the same function in C++ and its constant from here (`ops/codegen.py`).
"""

import math
import struct

# Shares are float32: 0.3 is 0.30000001, of which ten rows would be 3.0000001. A quarter of a float32's last place less
# keeps them at three.
BELOW_ONE = 1 - 2.0**-22
# What becomes of the rows that are not kept: the choices of the attribute `merge`, its default first.
DROP, MEAN = MERGES = ("none", "mean")


def kept_length(length: int, keep: float, exponent: float = 1.0, merge: str = DROP) -> int:
    """Rows that a sequence keeps: ceil(length * keep^exponent), at least one, and one more where others are merged.

    Args:
        length: rows that it has.
        keep: the knob, above 0, at most 1; rounded to float32, as which it travels.
        exponent: the node's attribute, likewise.
        merge: the node's attribute, one of `MERGES`: with `MEAN` the rows that are not kept become one.
    """
    share = _float32(keep)
    if length == 0 or share == 1:
        return length
    rows = math.ceil(length * math.pow(share, _float32(exponent)) * BELOW_ONE)
    return min(max(rows, 1) + (merge == MEAN), length)


def _float32(value: float) -> float:
    [rounded] = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
