"""SoftmaxAttention with `int8_products` in NumPy: what is rounded, where and to what.

Scores, weights and values are rounded as the kernels do it, bit for bit in all usual cases; sums of the rounded numbers
are float64. Whatever no int8 stands for (keys or values that are not finite) is not here: it is computed in float.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import Floats, Positions, probabilities, rows_of_last, visible

__all__ = ["FEWEST_KEYS", "KEY_BLOCK", "int8_softmax_attention", "round_keys", "round_queries", "round_values"]

HIGHEST = np.float32(127)
KEY_BLOCK = 128
FEWEST_KEYS = 48  # a shorter sequence is computed in float
MOST_LOST = (
    1 / 64
)  # of the sum of a row's weights, which rounding may move by so much; else the row is computed in float
LEAST_SIZE = np.float32(1e-30)  # keys and values no larger than that are 0
LEAST_STEP, MOST_STEP = np.float32(2**-16), np.float32(4)
MOST_SCORE = 2**22 - 1
MAGIC = np.float32(1.5 * 2**23)  # the kernels' scores are floats with this on top
POWERS = np.floor(255 * 128 * 2 ** (-np.arange(32) / 32) + 0.5).astype(np.int64)

Integers = NDArray[np.int64]
Singles = NDArray[np.float32]


class Rounded(NamedTuple):
    """Numbers in [-127, 127], and what 1 of them is worth.

    Attributes:
        numbers: [n, columns].
        scale: of all, of each row or of each column.
        mean: [columns], what was subtracted before.
    """

    numbers: Integers
    scale: Singles
    mean: Singles


def centred(rows: Floats) -> tuple[Singles, Singles, Singles]:
    """Rows less the mean of each column, that mean, and the largest distance from it in each column."""
    singles = rows.astype(np.float32)
    mean = singles.cumsum(axis=0, dtype=np.float32)[-1] / np.float32(len(rows))
    return singles - mean, mean, np.maximum(np.abs(singles.max(axis=0) - mean), np.abs(mean - singles.min(axis=0)))


def inverse_of(size: Singles) -> Singles:
    """127 / size, 0 for a size of next to nothing."""
    usual = size >= LEAST_SIZE
    return np.where(usual, HIGHEST / np.where(usual, size, np.float32(1)), np.float32(0)).astype(np.float32)


def round_keys(key: Floats, scale: float) -> Rounded:
    """Keys less their mean, which no softmax depends on; `scale` is that of the scores times log2(e), for 1 x 1."""
    rows, mean, distance = centred(key)
    size = np.asarray(distance.max())
    step = size / HIGHEST * np.float32(scale) * np.float32(np.log2(np.e))
    scale_of_all = np.where(size >= LEAST_SIZE, step, np.float32(0)).astype(np.float32)
    return Rounded(np.rint(rows * inverse_of(size)).astype(np.int64), scale_of_all, mean)


def round_values(value: Floats) -> Rounded:
    """Values less the mean of their column, which is added again at the end: weights sum to 1."""
    rows, mean, distance = centred(value)
    return Rounded(np.rint(rows * inverse_of(distance)).astype(np.int64), distance / HIGHEST, mean)


def round_queries(query: Floats, key_step: Singles) -> Rounded:
    """Queries, a scale a row: what 1 of its scores is worth, a power of two, is in [LEAST_STEP, MOST_STEP]."""
    rows = query.astype(np.float32)
    size = np.abs(rows).max(axis=1)
    step = size * np.abs(key_step) / HIGHEST
    usual = step >= LEAST_STEP
    inverse = np.where(
        usual, np.copysign(HIGHEST / np.where(usual, size, np.float32(1)), key_step), key_step / LEAST_STEP
    ).astype(np.float32)
    numbers = np.rint(rows * inverse[:, None]).astype(np.int64)
    return Rounded(numbers, np.clip(step, LEAST_STEP, MOST_STEP), np.zeros(rows.shape[1], np.float32))


def weigh(scores: Integers, seen: NDArray[np.bool_], step: Singles) -> tuple[Integers, Integers, NDArray[np.float64]]:
    """Weights of a key block in [0, 255], 255 for the largest score of a row.

    Beside them, what rounding took from the sum of each row's weights, in 128ths, and that score as a power of two.

    Args:
        scores: [rows, keys].
        seen: [rows, keys]: which count.
        step: [rows]: what 1 is worth, a power of two.
    """
    highest = np.where(seen, scores, -MOST_SCORE).max(axis=1)
    thirty_seconds = step * np.float32(32)
    top = (MAGIC + highest.astype(np.float32)) * thirty_seconds
    below = top.astype(np.float64)[:, None] - (float(MAGIC) + scores) * thirty_seconds.astype(np.float64)[:, None]
    z = np.clip(np.rint(below.astype(np.float32)), 0, 0xFFFF).astype(np.int64)
    power = POWERS[z % 32] >> np.minimum(z // 32, 15)
    weights = np.where(seen, (power * 256 + 2**14) >> 15, 0)
    rest = np.where(seen, power - 128 * weights, 0).sum(axis=1)
    return weights, rest, np.where(seen.any(axis=1), highest * step.astype(np.float64), -np.inf)


def key_blocks(length: int, apart: int, last_apart: bool) -> list[slice]:
    """The keys of a sequence as they are scored together; the first `apart`, or the last, come by themselves."""
    borders = {0, apart, *range(KEY_BLOCK, length, KEY_BLOCK), length - last_apart, length}
    return [slice(begin, end) for begin, end in pairwise(sorted(borders))]


def one_head(
    query: Floats, key: Floats, value: Floats, scale: float, seen: NDArray[np.bool_], last_key_rows: int, apart: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Output rows [n, value_dim] of one head of one sequence, and which of them are usable."""
    keys, values = round_keys(key, scale or key.shape[1] ** -0.5), round_values(value)
    queries = round_queries(query, keys.scale)
    scores = queries.numbers @ keys.numbers.T
    pieces = key_blocks(len(key), apart, last_key_rows > 1)
    blocks = [(at, *weigh(scores[:, at], seen[:, at], queries.scale)) for at in pieces]
    top_of_last = blocks[-1][-1]
    top_of_last += np.log2(last_key_rows)  # its block has no other key, if it stands for several rows
    highest = np.max([top for *_, top in blocks], axis=0)
    sums, lost, products = np.zeros(len(query)), np.zeros(len(query)), np.zeros((len(query), value.shape[1]))
    for at, weights, rest, top in blocks:
        factor = 2 ** (top - highest)
        sums += factor * weights.sum(axis=1)
        lost += factor * np.abs(rest) / 128
        products += factor[:, None] * (weights @ values.numbers[at])
    return products / sums[:, None] * values.scale + values.mean, lost <= MOST_LOST * sums


def int8_softmax_attention(
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
) -> NDArray[np.float64]:
    """`softmax_attention` with products in int8, where all keys and values are finite.

    Args:
        query: as in `softmax_attention`.
        key: as in `softmax_attention`.
        value: as in `softmax_attention`.
        cu_seqlens: as in `softmax_attention`.
        positions: as in `softmax_attention`.
        unmerged_cu_seqlens: as in `softmax_attention`.
        num_heads: as in `softmax_attention`.
        scale: as in `softmax_attention`.
        window: as in `softmax_attention`; the first row of a global window is computed in float.
        global_tokens: as in `softmax_attention`.

    Returns:
        [T, num_heads * value_dim].
    """
    output: NDArray[np.float64] = np.zeros((len(query), value.shape[1]))
    stands_for = rows_of_last(cu_seqlens, unmerged_cu_seqlens)
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads):
        places = None if positions is None else positions[at.keys]
        rows, keys, values = query[at.rows, at.columns], key[at.keys, at.columns], value[at.keys, at.values]
        several = stands_for[at.sequence]
        exactly = probabilities(rows, keys, scale, window, global_tokens, places, several) @ values
        output[at.rows, at.values] = exactly
        if at.length < FEWEST_KEYS:
            continue
        seen = visible(at.length, at.length, window, global_tokens, places)
        apart = 0 if visible(at.length, at.length, window, 0, places).all() else global_tokens
        rounded, usable = one_head(rows, keys, values, scale, seen, several, apart)
        output[at.rows, at.values] = np.where(usable[:, None], rounded, exactly)
        if window and global_tokens:
            output[at.rows.start, at.values] = exactly[0]
    return output
