"""RfaAttention in NumPy, float64, as plainly as it can be said."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_features import RFA_STREAM, directions
from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import softmax

Floats = NDArray[np.floating[Any]]

NORM_FLOOR = 1e-12
INVERSE_SIGMA_HIGH = 1000.0
LEAST_WEIGHT = 1e-6  # of a key in a denominator's least value


def unit(rows: Floats) -> NDArray[np.float64]:
    """Each row over max(its length, 1e-12); the published code adds 1e-3 to the length instead."""
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), NORM_FLOOR))


def features(rows: NDArray[np.float64], drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Random Fourier features (Peng et al., ICLR 2021, section 2.2, theorem 1; Rahimi and Recht, NIPS 2007).

    Args:
        rows: `[tokens, head_dim]`, of length 1 (section 3.1).
        drawn: `[m, head_dim]`, the w_i, normal with variance 1 / sigma^2 in each coordinate: the products of two rows'
            features then have the mean exp(-|x - y|^2 / (2 sigma^2)).

    Returns:
        `[tokens, 2 m]`, sines then cosines over sqrt(m).
    """
    angles = rows @ drawn.T
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1) / math.sqrt(len(drawn))


def least_denominator(tokens: int, inverse_sigma: float) -> float:
    """What a denominator counts at least: the least value of what it estimates, or 1e-6 a key where that is less.

    The published code takes its size, too, and at least a constant: 1 where features are multiplied by 0.1, so that it
    depends on their number and on the length.
    """
    return tokens * max(math.exp(-2 * inverse_sigma**2), LEAST_WEIGHT)


def kernel_estimate(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    value: NDArray[np.float64],
    drawn: NDArray[np.float64],
    least: float,
) -> NDArray[np.float64]:
    """One head of one sequence by features (equation 5): numerators over the size of the denominators, or `least`."""
    of_queries, of_keys = features(query, drawn), features(key, drawn)
    size = np.abs(of_queries @ of_keys.sum(axis=0))
    return np.asarray(of_queries @ (of_keys.T @ value) / np.maximum(size, least)[:, None])


def kernel_exact(
    query: NDArray[np.float64], key: NDArray[np.float64], value: NDArray[np.float64], inverse_sigma: float
) -> NDArray[np.float64]:
    """What the features estimate: of unit rows exp(-|q - k|^2 / (2 sigma^2)) is in proportion to exp(q.k / sigma^2)."""
    return np.asarray(softmax(query @ key.T * inverse_sigma**2) @ value)


def rfa_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    num_features: NDArray[np.int32],
    seed: NDArray[np.int64],
    inverse_sigma: Floats | None = None,
    *,
    num_heads: int,
    sigma: float = 1.0,
    layer: int = 0,
    queries: str = "all",
) -> NDArray[np.float64]:
    """Random feature attention (Peng et al., ICLR 2021, sections 2.2 and 3.1), not causal and without the gate.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_features: [B], directions of each sequence, which have two features each; 0 computes the exact kernel.
        seed: [B], of the directions.
        inverse_sigma: [num_heads], trained factors on 1 / sigma, cut to +-1,000; the published code trains one for each
            coordinate.
        num_heads: heads.
        sigma: width of the kernel.
        layer: random stream.
        queries: `all`, or `first`: row b is the first row of sequence b; 0 for an empty sequence.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    factors = np.ones(num_heads) if inverse_sigma is None else inverse_sigma.astype(np.float64)
    factors = np.clip(factors, -INVERSE_SIGMA_HIGH, INVERSE_SIGMA_HIGH)
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        inverse = float(factors[at.head] / np.float32(sigma))
        of_queries, of_keys = unit(query[at.rows, at.columns]), unit(key[at.keys, at.columns])
        mixed, count = value[at.keys, at.values].astype(np.float64), int(num_features[at.sequence])
        if count == 0:
            output[at.rows, at.values] = kernel_exact(of_queries, of_keys, mixed, inverse)
            continue
        head_dim = key.shape[1] // num_heads
        drawn = inverse * directions(int(seed[at.sequence]), layer, at.head, RFA_STREAM, count, head_dim)
        least = least_denominator(at.length, inverse)
        output[at.rows, at.values] = kernel_estimate(of_queries, of_keys, mixed, drawn, least)
    return output
