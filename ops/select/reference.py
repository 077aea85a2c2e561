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
    unmerged_cu_seqlens: NDArray[np.int32] | None = None,
) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
    """The rows of each sequence of a packed batch that matter most.

    Args:
        rows: [T, C].
        importance: [T].
        cu_seqlens: [B + 1], offsets of the sequences.
        kept_cu_seqlens: [B + 1], offsets of what is kept of them.
        unmerged_cu_seqlens: [B + 1], offsets before rows were merged; None: rows that are not kept are dropped.

    Returns:
        The kept rows [K, C], bit for bit, and their places [K] among the packed rows. Where others are merged, the last
        row of a sequence is their mean, rounded once, and its place that of the last of them.
    """
    kept, places = rows[:0], np.zeros(0, np.int64)
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        own, count = rows[begin:end], int(kept_cu_seqlens[b + 1] - kept_cu_seqlens[b])
        if unmerged_cu_seqlens is None or count == len(own):
            chosen = select_places(importance[begin:end], count)
            kept = np.concatenate([kept, own[chosen]])
        else:
            before = int(unmerged_cu_seqlens[b + 1] - unmerged_cu_seqlens[b])
            stands_for = np.ones(len(own))
            stands_for[-1] = before - len(own) + 1
            single = len(own) - (before > len(own))
            chosen = select_places(importance[begin : begin + single], count - 1)
            others = np.setdiff1d(np.arange(len(own)), chosen)
            mean = np.average(own[others].astype(np.float64), axis=0, weights=stands_for[others])
            kept = np.concatenate([kept, own[chosen], mean[None].astype(rows.dtype)])
            chosen = np.append(chosen, others[-1])
        places = np.concatenate([places, begin + chosen])
    return kept, places
