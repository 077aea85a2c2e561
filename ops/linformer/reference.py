"""LinformerAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    head_dim, value_dim = key.shape[1] // num_heads, value.shape[1] // num_heads
    k = len(key_projection) // num_heads
    factor = scale or head_dim**-0.5
    output = np.zeros((len(query), value.shape[1]))
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        if begin == end:
            continue
        rows = slice(begin, end) if queries == "all" else slice(b, b + 1)
        for head in range(num_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            values = slice(head * value_dim, (head + 1) * value_dim)
            e = key_projection[head * k : (head + 1) * k, : end - begin].astype(np.float64)
            f = e if value_projection is None else value_projection[head * k : (head + 1) * k, : end - begin]
            keys = e @ key[begin:end, columns].astype(np.float64)
            scores = factor * query[rows, columns].astype(np.float64) @ keys.T
            mixed = f.astype(np.float64) @ value[begin:end, values].astype(np.float64)
            output[rows, values] = softmax(scores) @ mixed
    return output
