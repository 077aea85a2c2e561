"""KeptLengths in NumPy, float64."""

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.kept_lengths.rule import DROP, kept_length


def kept_lengths(
    cu_seqlens: NDArray[np.int32], keep: NDArray[np.float32], *, exponent: float = 1.0, merge: str = DROP
) -> NDArray[np.int32]:
    """Offsets of the sequences of a packed batch after a selection.

    Args:
        cu_seqlens: [B + 1], offsets before it.
        keep: [B], the knob.
        exponent: of the node; stored as float32.
        merge: of the node.

    Returns:
        [B + 1], offsets after it.
    """
    lengths = [
        kept_length(int(length), float(share), exponent, merge)
        for length, share in zip(np.diff(cu_seqlens), keep, strict=True)
    ]
    return np.cumsum([0, *lengths]).astype(np.int32)
