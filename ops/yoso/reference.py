"""YosoAttention in NumPy, slow and readable: the ground truth of its tests.

Codes (`reference_hashes`) are integer arithmetic and equal the C++ ones bit for bit; what follows is float64. Source:
Zeng et al., "You Only Sample (Almost) Once", ICML 2021.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.reference_hashes import (
    SMALLEST_MAXIMUM,
    Codes,
    Hash,
    Side,
    codes,
    gaussian_planes,
    half_lift,
    lift_planes,
    paper_hadamard_codes,
    quantise,
    steps_per_unit,
)
from attenuator.ops.yoso.rule import ROUNDED_HIGH, SMALLEST_COLUMN, rounds

__all__ = [
    "NORM_FLOOR",
    "SMALLEST_MAXIMUM",
    "SUM_FLOOR",
    "Array",
    "Codes",
    "Hash",
    "Side",
    "codes",
    "collision_probability",
    "convolution",
    "gaussian_planes",
    "half_lift",
    "head_weights",
    "lift_planes",
    "paper_hadamard_codes",
    "quantise",
    "rounded_values",
    "shares_of_sum",
    "steps_per_unit",
    "unit",
    "yoso_attention",
    "yoso_importance",
]

Array = NDArray[np.float64]

NORM_FLOOR = 1e-12
SUM_FLOOR = 1e-30  # of the weights of a row, by which normalize = 2 divides


def unit(rows: NDArray[Any], floor: float = NORM_FLOOR) -> Array:
    """Each row over max(its l2 norm, floor), in float64."""
    wide = rows.astype(np.float64)
    rows_of_length_one: Array = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), floor)
    return rows_of_length_one


def collision_probability(
    query: NDArray[np.float32], key: NDArray[np.float32], hash_bits: int, norm_lift: float = 0.0
) -> Array:
    """YOSO-E's weights `(1 - arccos(q . k) / pi)^tau` (section 3.1), `[queries, keys]`.

    The norm lift (appendix 1.1) makes both [x, sqrt(norm_lift - |x|^2)] of norm sqrt(norm_lift), each with its added
    coordinate where the other has 0: the cosine is q . k over the product of max(|x|, sqrt(norm_lift)).
    """
    floor = max(NORM_FLOOR, float(np.sqrt(np.float32(norm_lift))))
    cosine = np.clip(unit(query, floor) @ unit(key, floor).T, -1, 1)
    probability: Array = (1 - np.arccos(cosine) / np.pi) ** hash_bits
    return probability


def convolution(value: NDArray[np.floating[Any]], weight: NDArray[np.floating[Any]]) -> Array:
    """YOSO-C's depthwise convolution along the sequence, zeros beyond its ends (appendix): `[n, value_dim]`."""
    reach = len(weight) // 2
    wide = np.pad(value.astype(np.float64), ((reach, reach), (0, 0)))
    result: Array = np.zeros(value.shape)
    for tap, factor in enumerate(weight.astype(np.float64)):
        result += factor * wide[tap : tap + len(value)]
    return result


def rounded_values(value: NDArray[np.float32]) -> Array:
    """One head's values as tables of int16 hold them: each a whole number of its column's steps.

    A step is the largest magnitude of the column of this sequence, at least 1e-30, over 127. Two float32 operations, as
    in the kernels, so that the whole numbers are the same; a value moves by at most half a step, beside their rounding.

    Args:
        value: `[n, value_dim]`, finite.

    Returns:
        `[n, value_dim]`.
    """
    largest = np.maximum(np.abs(value).max(axis=0), np.float32(SMALLEST_COLUMN))
    high = np.float32(ROUNDED_HIGH)
    rounded: Array = np.rint(value * (high / largest)).astype(np.float64) * (largest / high)
    return rounded


def head_weights(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    *,
    num_hashes: int,
    seed: int,
    layer: int,
    head: int,
    hash_bits: int,
    hash: Hash,
    norm_lift: float = 0.0,
) -> Array:
    """One head's shares of hashes that collide, B / m, or E where num_hashes is 0.

    Shapes: query `[queries, head_dim]`, key `[n, head_dim]` to `[queries, n]`.
    """
    if num_hashes == 0:
        return collision_probability(query, key, hash_bits, norm_lift)
    settings = (seed, layer, head, num_hashes, hash_bits, hash, norm_lift)
    query_codes, key_codes = codes(query, *settings, "query"), codes(key, *settings, "key")
    weights: Array = np.zeros((len(query), len(key)))
    for t in range(num_hashes):
        weights += query_codes[:, t, None] == key_codes[None, :, t]
    weights /= num_hashes
    return weights


def shares_of_sum(weights: Array) -> Array:
    """Each row's weights over max(their sum, 1e-30): a row that met nobody stays 0."""
    shares: Array = weights / np.maximum(weights.sum(axis=1, keepdims=True), SUM_FLOOR)
    return shares


def yoso_attention(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    cu_seqlens: NDArray[np.int32],
    num_hashes: NDArray[np.int32],
    seed: NDArray[np.int64],
    conv_weight: NDArray[np.float32] | None = None,
    *,
    num_heads: int,
    hash_bits: int,
    layer: int = 0,
    hash: Hash = "gaussian",
    normalize: int = 1,
    norm_lift: float = 0.0,
    table_precision: Literal["float32", "int16"] = "float32",
    queries: Literal["all", "first"] = "all",
) -> Array:
    """The whole operator.

    Args:
        query: `[T, num_heads * head_dim]`, or `[B, num_heads * head_dim]` where queries is `first`.
        key: `[T, num_heads * head_dim]`.
        value: `[T, num_heads * value_dim]`.
        cu_seqlens: `[B + 1]`.
        num_hashes: `[B]`.
        seed: `[B]`.
        conv_weight: `[num_heads, c]`, c odd, or None.
        num_heads: attention heads.
        hash_bits: tau in the paper.
        layer: random stream of the node.
        hash: family of hyperplanes.
        normalize: 1 for N-YOSO's l2 norm per head, 0 for the raw average, 2 for the average weighted by collisions,
            which is the raw one over the sum of the weights.
        norm_lift: bound on the squared norms of rows (appendix 1.1); 0 for none.
        table_precision: `int16` rounds values where the kernels use tables (`rule.rounds`).
        queries: `all`, or `first` token of each sequence.

    Returns:
        `[T or B, num_heads * value_dim]`.
    """
    head_dim, value_dim = key.shape[1] // num_heads, value.shape[1] // num_heads
    output = np.zeros((len(query), value.shape[1]))
    for b, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        if start == end:
            continue
        target = slice(b, b + 1) if queries == "first" else slice(start, end)
        for head in range(num_heads):
            hashed = slice(head * head_dim, (head + 1) * head_dim)
            valued = slice(head * value_dim, (head + 1) * value_dim)
            q, k, v = query[target, hashed], key[start:end, hashed], value[start:end, valued]
            if not all(np.isfinite(whole).all() for whole in (query[target], key[start:end], value[start:end])):
                output[target] = np.nan
                break
            hashing = dict(num_hashes=int(num_hashes[b]), seed=int(seed[b]), layer=layer, head=head)
            weights = head_weights(q, k, **hashing, hash_bits=hash_bits, hash=hash, norm_lift=norm_lift)
            rounding = table_precision == "int16" and rounds(len(q), len(k), int(num_hashes[b]), hash_bits, value_dim)
            wide = rounded_values(v) if rounding else v.astype(np.float64)
            rows = (shares_of_sum(weights) if normalize == 2 else weights) @ wide
            if normalize == 1:
                rows = unit(rows)
            if conv_weight is not None:
                rows = rows + convolution(v, conv_weight[head])[: len(rows)]
            output[target, valued] = rows
    return output


def yoso_importance(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    cu_seqlens: NDArray[np.int32],
    num_hashes: NDArray[np.int32],
    seed: NDArray[np.int64],
    *,
    num_heads: int,
    hash_bits: int,
    layer: int = 0,
    hash: Hash = "gaussian",
    normalize: int = 1,
    norm_lift: float = 0.0,
    queries: Literal["all", "first"] = "all",
) -> Array:
    """The output `importance`: the weights of the first row before any l2 norm, summed over heads.

    Args:
        query: as in `yoso_attention`.
        key: as in `yoso_attention`.
        cu_seqlens: as in `yoso_attention`.
        num_hashes: as in `yoso_attention`.
        seed: as in `yoso_attention`.
        num_heads: attention heads.
        hash_bits: tau in the paper.
        layer: random stream of the node.
        hash: family of hyperplanes.
        normalize: as in `yoso_attention`.
        norm_lift: as in `yoso_attention`.
        queries: `all`, or `first` token of each sequence.

    Returns:
        `[T]`: the share of hashes in which the key's code is that of its sequence's first query, or its expectation
        where num_hashes is 0, over the head's sum of them where normalize is 2; summed over heads. NaN where query or
        key of the sequence are not finite.
    """
    head_dim = key.shape[1] // num_heads
    output = np.zeros(len(key))
    for b, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        row = slice(b, b + 1) if queries == "first" else slice(start, start + 1)
        if not (np.isfinite(query[row]).all() and np.isfinite(key[start:end]).all()):
            output[start:end] = np.nan
            continue
        for head in range(num_heads if end > start else 0):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            hashing = dict(num_hashes=int(num_hashes[b]), seed=int(seed[b]), layer=layer, head=head)
            weights = head_weights(
                query[row, columns], key[start:end, columns], **hashing, hash_bits=hash_bits, hash=hash,
                norm_lift=norm_lift,
            )  # fmt: skip
            output[start:end] += (shares_of_sum(weights) if normalize == 2 else weights)[0]
    return output
