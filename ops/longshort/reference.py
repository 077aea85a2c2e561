"""LongShortAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import softmax
from attenuator.ops.window.rule import narrowed

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]


def layer_norm(rows: Float64s, norm: Floats, epsilon: float) -> Float64s:
    """Ba et al., 2016: rows [n, columns] of mean 0 and variance 1, times norm[0], plus norm[1]."""
    mean = rows.mean(axis=1, keepdims=True)
    centred = rows - (mean + (rows - mean).mean(axis=1, keepdims=True))  # of equal elements 0, however large
    variance = (centred**2).mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon) * norm[0].astype(np.float64) + norm[1])


def longshort_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    window: NDArray[np.int32],
    dynamic_projection: Floats,
    local_key_norm: Floats,
    local_value_norm: Floats,
    global_key_norm: Floats,
    global_value_norm: Floats,
    *,
    num_heads: int,
    scale: float = 0.0,
    trained_window: int = 64,
    epsilon: float = 1e-5,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Zhu et al., "Long-Short Transformer", NeurIPS 2021, sections 3.2 to 3.4, bidirectional.

    For each head of each sequence: P = softmax over the tokens of K W_P (equation 3), K_g = P^T K, V_g = P^T V, and
    Y = softmax(scale Q [LN_L(K_window); LN_G(K_g)]^T) [LN_L(V_window); LN_G(V_g)] (equations 5 and 6, with DualLN).

    Where the published code differs: it scores the layer's input rather than the head's keys for P; it mixes keys after
    LN_L rather than before; its layer norms run over all heads' channels together, and keys share theirs with values;
    and the window of a row is its segment of `w` tokens and half a segment on either side, not a band around the row.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        window: [B], keys with |i - j| <= window are seen; 0, and all beyond trained_window, mean trained_window.
        dynamic_projection: W_P, [num_heads * r, head_dim].
        local_key_norm: [2, num_heads * head_dim], factors and terms of LN_L for keys, each head's a layer norm.
        local_value_norm: [2, num_heads * value_dim], for values.
        global_key_norm: as local_key_norm, of LN_G.
        global_value_norm: as local_value_norm, of LN_G.
        num_heads: heads.
        scale: factor on the scores; 0 means 1 / sqrt(head_dim).
        trained_window: at least 1.
        epsilon: added to variances.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    r, factor = len(dynamic_projection) // num_heads, scale or (key.shape[1] // num_heads) ** -0.5
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        places = np.arange(at.length)
        width = narrowed(trained_window, int(window[at.sequence]))
        outside = np.abs(places[: at.rows.stop - at.rows.start, None] - places) > width
        q = query[at.rows, at.columns].astype(np.float64)
        k, v = key[at.keys, at.columns].astype(np.float64), value[at.keys, at.values].astype(np.float64)
        p = softmax(k @ dynamic_projection[at.head * r : (at.head + 1) * r].astype(np.float64).T, axis=0)
        keys = layer_norm(k, local_key_norm[:, at.columns], epsilon)
        global_keys = layer_norm(p.T @ k, global_key_norm[:, at.columns], epsilon)
        scores = factor * q @ np.concatenate([keys, global_keys]).T
        scores[:, : at.length][outside] = -np.inf
        local_values = layer_norm(v, local_value_norm[:, at.values], epsilon)
        global_values = layer_norm(p.T @ v, global_value_norm[:, at.values], epsilon)
        output[at.rows, at.values] = softmax(scores) @ np.concatenate([local_values, global_values])
    return output
