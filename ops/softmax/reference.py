"""SoftmaxAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences

Floats = NDArray[np.floating[Any]]
Positions = NDArray[np.int64]


def visible(
    rows: int, length: int, window: int = 0, global_tokens: int = 0, positions: Positions | None = None
) -> NDArray[np.bool_]:
    """Which keys each row sees.

    Args:
        rows: how many, from the first on.
        length: n, the number of keys.
        window: keys with |i - j| <= window; 0 = all.
        global_tokens: 1: the first token is a key of every row, and its row sees all keys.
        positions: [n], ascending: what i and j are; None: 0 to n - 1.

    Returns:
        [rows, n], as in Beltagy et al., "Longformer", 2020, section 3.1, without separate global weights.
    """
    if window == 0:
        return np.ones((rows, length), bool)
    places = np.arange(length) if positions is None else positions
    mask = np.abs(places[:rows, None] - places[None, :]) <= window
    if global_tokens:
        mask[:, :1] = True
        mask[:1, :] = True
    return np.asarray(mask)


def softmax(scores: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """Shares in proportion to exp(scores) along an axis; a score of -inf has none, if another is finite."""
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def probabilities(
    query: Floats,
    key: Floats,
    scale: float = 0.0,
    window: int = 0,
    global_tokens: int = 0,
    positions: Positions | None = None,
    last_key_rows: int = 1,
) -> NDArray[np.float64]:
    """softmax(scale * Q K^T) of one head of one sequence over the visible keys.

    Args:
        query: [n, head_dim], or [1, head_dim] for the first row alone.
        key: [n, head_dim].
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        window: see `visible`.
        global_tokens: see `visible`.
        positions: see `visible`.
        last_key_rows: how many rows the last key stands for, whose weights it gets: Bolya et al., "Token Merging",
            ICLR 2023, equation 1.

    Returns:
        [rows of query, n].
    """
    scores = query.astype(np.float64) @ key.astype(np.float64).T * (scale or key.shape[1] ** -0.5)
    scores[:, -1] += np.log(last_key_rows)
    scores[~visible(len(query), len(key), window, global_tokens, positions)] = -np.inf
    return softmax(scores)


def softmax_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    positions: Positions | None = None,
    unmerged_cu_seqlens: NDArray[np.int32] | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    window: int = 0,
    global_tokens: int = 0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Vaswani et al., NeurIPS 2017, equation 1, for each head of each sequence of a packed batch.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        positions: [T], ascending in each sequence: what windows measure; None: the row's index.
        unmerged_cu_seqlens: [B + 1], offsets before rows were merged, whose mean a sequence's last row is; None: no row
            is a mean.
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        window: see `visible`.
        global_tokens: see `visible`.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    output = np.zeros((len(query), value.shape[1]))
    stands_for = rows_of_last(cu_seqlens, unmerged_cu_seqlens)
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        places = None if positions is None else positions[at.keys]
        sides = query[at.rows, at.columns], key[at.keys, at.columns]
        weights = probabilities(*sides, scale, window, global_tokens, places, stands_for[at.sequence])
        output[at.rows, at.values] = weights @ value[at.keys, at.values]
    return output


def rows_of_last(cu_seqlens: NDArray[np.integer[Any]], unmerged_cu_seqlens: NDArray[np.int32] | None) -> list[int]:
    """How many rows the last row of each sequence stands for: [B]."""
    lengths = np.diff(cu_seqlens)
    unmerged = lengths if unmerged_cu_seqlens is None else np.diff(unmerged_cu_seqlens)
    return [int(rows) for rows in unmerged - lengths + 1]


def attention_importance(
    query: Floats,
    key: Floats,
    cu_seqlens: NDArray[np.int32],
    positions: Positions | None = None,
    unmerged_cu_seqlens: NDArray[np.int32] | None = None,
    *,
    num_heads: int,
    importance: str,
    scale: float = 0.0,
    window: int = 0,
    global_tokens: int = 0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """The output `importance` of every operator that computes softmax weights.

    Kim et al., "Learned Token Pruning for Transformers", KDD 2022, equation 2, averages the weights over the rows;
    here the first row alone counts, or the row with the largest weight.

    Args:
        query: as in `softmax_attention`.
        key: as in `softmax_attention`.
        cu_seqlens: as in `softmax_attention`.
        positions: as in `softmax_attention`.
        unmerged_cu_seqlens: as in `softmax_attention`.
        num_heads: heads.
        importance: `first` or `maximum`.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        window: see `visible`.
        global_tokens: see `visible`.
        queries: `all`, or `first`: the first row is the only one.

    Returns:
        [T]: sum over heads of the weight of key j for row 0 of its sequence, or of its largest weight for any row.
    """
    result = np.zeros(len(key))
    stands_for = rows_of_last(cu_seqlens, unmerged_cu_seqlens)
    for at in heads_of_sequences(key, key, cu_seqlens, num_heads, queries):
        places = None if positions is None else positions[at.keys]
        sides = query[at.rows, at.columns], key[at.keys, at.columns]
        weights = probabilities(*sides, scale, window, global_tokens, places, stands_for[at.sequence])
        result[at.keys] += weights[0] if importance == "first" else weights.max(axis=0)
    return result
