"""WindowAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.softmax.reference import Positions, softmax_attention
from attenuator.ops.window.rule import narrowed

Floats = NDArray[np.floating[Any]]


def window_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    window: NDArray[np.int32],
    positions: Positions | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    trained_window: int = 0,
    global_tokens: int = 0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Beltagy et al., "Longformer", 2020, section 3.1, with a window of its own for each sequence.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        window: [B], keys with |i - j| <= window; 0 is the trained one.
        positions: [T], ascending in each sequence: what windows measure; None: the row's index.
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        trained_window: the widest window; 0 sees all keys.
        global_tokens: 1: the first token is a key of every row, and its row sees all keys.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    output = np.zeros((len(query), value.shape[1]))
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        rows = slice(begin, end) if queries == "all" else slice(b, b + 1)
        output[rows] = softmax_attention(
            query[rows],
            key[begin:end],
            value[begin:end],
            np.array([0, end - begin], np.int32),
            None if positions is None else positions[begin:end],
            num_heads=num_heads,
            scale=scale,
            window=narrowed(trained_window, int(window[b])),
            global_tokens=global_tokens,
            queries=queries,
        )
    return output
