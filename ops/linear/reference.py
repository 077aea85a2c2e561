"""LinearAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences

Floats = NDArray[np.floating[Any]]


def features(rows: Floats) -> NDArray[np.float64]:
    """elu(x) + 1 of each element: x + 1 above 0, exp(x) below (Katharopoulos et al., ICML 2020, equation 7)."""
    wide = rows.astype(np.float64)
    return np.asarray(np.where(wide > 0, wide + 1, np.exp(np.minimum(wide, 0))))


def linear_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    *,
    num_heads: int,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Katharopoulos et al., ICML 2020, equations 4 to 6, not causal, for each head of each sequence of a packed batch.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_heads: heads.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        of_queries, of_keys = features(query[at.rows, at.columns]), features(key[at.keys, at.columns])
        mixed = of_queries @ (of_keys.T @ value[at.keys, at.values].astype(np.float64))
        output[at.rows, at.values] = mixed / (of_queries @ of_keys.sum(axis=0))[:, None]
    return output
