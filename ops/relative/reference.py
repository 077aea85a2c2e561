"""RelativeAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import rows_of_last

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]


def table_rows(queries: Integers, keys: Integers, buckets: Integers) -> Integers:
    """The row of the tables for each pair of a query and a key.

    Args:
        queries: [n], their positions.
        keys: [m], their positions.
        buckets: [2 * reach + 1], row of each distance from -reach to reach.

    Returns:
        [n, m]; a distance beyond reach counts as reach.
    """
    reach = len(buckets) // 2
    distance = queries[:, None] - keys[None, :]
    return np.asarray(buckets[np.clip(distance, -reach, reach) + reach])


def scores(
    query: Floats,
    key: Floats,
    scale: float,
    rows: Integers | None,
    pos_key: Floats | None,
    pos_query: Floats | None,
    bias: Floats | None,
) -> NDArray[np.float64]:
    """Of one head: scale * (q_i . k_j + q_i . pos_key[r_ij] + k_j . pos_query[r_ij]) + bias[r_ij].

    Args:
        query: [n, head_dim].
        key: [m, head_dim].
        scale: factor on the products.
        rows: r [n, m], see `table_rows`; None without tables.
        pos_key: [R, head_dim], or None.
        pos_query: [R, head_dim], or None.
        bias: [R], or None.

    Returns:
        [n, m].
    """
    products = query.astype(np.float64) @ key.astype(np.float64).T
    if rows is not None and pos_key is not None:
        products += np.take_along_axis(query.astype(np.float64) @ pos_key.astype(np.float64).T, rows, axis=1)
    if rows is not None and pos_query is not None:
        products += np.take_along_axis(key.astype(np.float64) @ pos_query.astype(np.float64).T, rows.T, axis=1).T
    scaled = scale * products
    return scaled if rows is None or bias is None else np.asarray(scaled + bias.astype(np.float64)[rows])


def relative_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    buckets: Integers | None = None,
    pos_key: Floats | None = None,
    pos_query: Floats | None = None,
    bias: Floats | None = None,
    positions: Integers | None = None,
    unmerged_cu_seqlens: NDArray[np.int32] | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    queries: str = "all",
    importance: str = "none",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """He et al., ICLR 2021, equation 4, with any factor and a bias, for each head of each sequence of a packed batch.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        buckets: [2 * reach + 1], see `table_rows`; None without tables.
        pos_key: [R, num_heads * head_dim], or None.
        pos_query: [R, num_heads * head_dim], or None.
        bias: [R, num_heads], or None.
        positions: [T]; None counts the rows of each sequence.
        unmerged_cu_seqlens: [B + 1], offsets before rows were merged, whose mean a sequence's last row is; None: no row
            is a mean.
        num_heads: heads.
        scale: factor on the products; 0 means 1/sqrt(head_dim).
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.
        importance: `none`, `first` or `maximum`.

    Returns:
        The output [rows of query, num_heads * value_dim], and importance [T], summed over heads: the weight of key j
        for row 0 of its sequence, or its largest weight for any row; 0 without importance.
    """
    of_keys = np.zeros(len(key))
    places = np.arange(len(key)) if positions is None else positions
    output = np.zeros((len(query), value.shape[1]))
    stands_for = rows_of_last(cu_seqlens, unmerged_cu_seqlens)
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        own = places[at.keys]
        of_head = scores(
            query[at.rows, at.columns],
            key[at.keys, at.columns],
            scale or (key.shape[1] // num_heads) ** -0.5,
            None if buckets is None else table_rows(own if queries == "all" else own[:1], own, buckets),
            None if pos_key is None else pos_key[:, at.columns],
            None if pos_query is None else pos_query[:, at.columns],
            None if bias is None else bias[:, at.head],
        )
        of_head[:, -1] += np.log(stands_for[at.sequence])
        weights = np.exp(of_head - of_head.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        output[at.rows, at.values] = weights @ value[at.keys, at.values]
        if importance != "none":
            of_keys[at.keys] += weights[0] if importance == "first" else weights.max(axis=0)
    return output, of_keys
