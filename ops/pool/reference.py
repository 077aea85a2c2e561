"""SequencePool in NumPy, float64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sequence_pool(
    hidden: NDArray[np.floating[Any]], cu_seqlens: NDArray[np.int32], *, mode: str = "first"
) -> NDArray[np.float64]:
    """The first row, or the mean, of each sequence of a packed batch.

    Args:
        hidden: [T, C].
        cu_seqlens: [B + 1], offsets of the sequences.
        mode: `first` or `mean`.

    Returns:
        [B, C], zeros for an empty sequence.
    """
    output = np.zeros((len(cu_seqlens) - 1, hidden.shape[1]))
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        if begin < end:
            rows = hidden[begin:end].astype(np.float64)
            output[b] = rows[0] if mode == "first" else rows.mean(axis=0)
    return output
