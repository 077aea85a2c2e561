"""PerformerAttention in NumPy, float64, as plainly as it can be said."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_features import orthogonal_directions
from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import softmax

Floats = NDArray[np.floating[Any]]

LARGEST = 1e18  # elements of scaled rows are cut to it


def scaled(rows: Floats, factor: float) -> NDArray[np.float64]:
    """Rows times a factor, no element beyond `LARGEST`."""
    return np.clip(rows.astype(np.float64) * factor, -LARGEST, LARGEST)


def log_features(rows: NDArray[np.float64], directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of sqrt(m) times the positive features (Choromanski et al., ICLR 2021, lemma 1 and equation 7).

    Args:
        rows: `[tokens, head_dim]`, scaled by head_dim^-1/4 (section 2.2).
        directions: `[m, head_dim]`, the w_i.

    Returns:
        `[tokens, m]`, w_i . x - |x|^2 / 2.
    """
    return np.asarray(rows @ directions.T - 0.5 * (rows**2).sum(axis=1, keepdims=True))


def softmax_estimate(
    query: NDArray[np.float64], key: NDArray[np.float64], value: NDArray[np.float64], directions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One head of one sequence by features (equation 4): numerators and denominators in powers of e, over the keys.

    Every sum is taken relative to its largest term, which changes nothing but the range. The published code instead
    takes a query's exponents relative to their largest one, a key's relative to the largest of all keys of the batch,
    and adds 1e-4 to each feature, which is a bias.

    Args:
        query: `[rows, head_dim]`, scaled.
        key: `[tokens, head_dim]`, scaled; at least one token.
        value: `[tokens, value_dim]`.
        directions: `[m, head_dim]`.

    Returns:
        `[rows, value_dim]`.
    """
    of_queries, of_keys = log_features(query, directions), log_features(key, directions)
    largest = of_keys.max(axis=0)  # of each feature
    relative = np.exp(of_keys - largest)
    of_queries = of_queries + largest
    weights = np.exp(of_queries - of_queries.max(axis=1, keepdims=True))
    mixed = weights @ (relative.T @ value)
    return np.asarray(mixed / (weights @ relative.sum(axis=0))[:, None])


def softmax_exact(
    query: NDArray[np.float64], key: NDArray[np.float64], value: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What the features estimate: softmax over the products of scaled rows, `[rows, value_dim]`."""
    return np.asarray(softmax(query @ key.T) @ value)


def performer_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    num_features: NDArray[np.int32],
    seed: NDArray[np.int64],
    *,
    num_heads: int,
    scale: float = 0.0,
    layer: int = 0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """FAVOR+ (Choromanski et al., ICLR 2021, sections 2.2 to 2.4), not causal, for each head of each sequence.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_features: [B], m of each sequence; 0 computes softmax attention.
        seed: [B], of the directions.
        num_heads: heads.
        scale: factor on the scores, 0 for 1/sqrt(head_dim); its root is a factor of queries and of keys.
        layer: random stream.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    head_dim = key.shape[1] // num_heads
    scale = scale or 1 / math.sqrt(head_dim)
    root = math.sqrt(abs(scale))
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        of_queries = scaled(query[at.rows, at.columns], math.copysign(root, scale))
        of_keys = scaled(key[at.keys, at.columns], root)
        mixed, count = value[at.keys, at.values].astype(np.float64), int(num_features[at.sequence])
        if count == 0:
            output[at.rows, at.values] = softmax_exact(of_queries, of_keys, mixed)
            continue
        drawn = orthogonal_directions(int(seed[at.sequence]), layer, at.head, count, head_dim)
        output[at.rows, at.values] = softmax_estimate(of_queries, of_keys, mixed, drawn)
    return output
