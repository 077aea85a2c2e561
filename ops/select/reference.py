"""TokenSelect in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def select_places(importance: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The positions that one sequence keeps.

    Args:
        importance: [n] of its rows; NaN counts as largest.
        count: how many to keep, at least 1 unless n is 0, at most n.

    Returns:
        [count], ascending: position 0, then those of largest importance, the lower position where two are equal.
    """
    position = np.arange(len(importance))
    unknown = np.isnan(importance)
    falling = np.where(unknown, 0, -importance.astype(np.float64))
    best_first = np.lexsort((position, falling, ~unknown, position != 0))  # the last key counts first
    return np.sort(best_first[:count]).astype(np.int64)


def token_select(
    rows: NDArray[np.floating[Any]],
    importance: NDArray[np.float32],
    cu_seqlens: NDArray[np.int32],
    kept_cu_seqlens: NDArray[np.int32],
) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
    """The rows of each sequence of a packed batch that matter most.

    Args:
        rows: [T, C].
        importance: [T].
        cu_seqlens: [B + 1], offsets of the sequences.
        kept_cu_seqlens: [B + 1], offsets of what is kept of them.

    Returns:
        The kept rows [K, C], bit for bit, and their places [K] among the packed rows.
    """
    counts = np.diff(kept_cu_seqlens)
    parts = [
        begin + select_places(importance[begin:end], int(count))
        for begin, end, count in zip(cu_seqlens[:-1], cu_seqlens[1:], counts, strict=True)
    ]
    places = np.concatenate([np.zeros(0, np.int64), *parts])
    return rows[places], places
