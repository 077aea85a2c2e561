"""LinformerAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import softmax

Floats = NDArray[np.floating[Any]]


def linformer_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    key_projection: Floats,
    value_projection: Floats | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Wang et al., "Linformer", 2020, equation 7, for each head of each sequence of a packed batch.

    The published code pads every sequence to max_tokens and sets the keys and values of padding to 0, so that a text of
    n tokens meets the first n columns of the projections alone. The softmax is over the k projected rows, none masked.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        key_projection: E, [num_heads * k, max_tokens]; no sequence is longer than max_tokens.
        value_projection: F, likewise; E where it is None, as in the published code.
        num_heads: heads.
        scale: factor on the scores; 0 means 1 / sqrt(head_dim).
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    k = len(key_projection) // num_heads
    factor = scale or (key.shape[1] // num_heads) ** -0.5
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        mixtures = slice(at.head * k, (at.head + 1) * k)
        e = key_projection[mixtures, : at.length].astype(np.float64)
        f = e if value_projection is None else value_projection[mixtures, : at.length]
        keys = e @ key[at.keys, at.columns].astype(np.float64)
        scores = factor * query[at.rows, at.columns].astype(np.float64) @ keys.T
        mixed = f.astype(np.float64) @ value[at.keys, at.values].astype(np.float64)
        output[at.rows, at.values] = softmax(scores) @ mixed
    return output
