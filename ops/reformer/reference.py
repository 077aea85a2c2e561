"""ReformerAttention in NumPy: buckets in integers, equal to the kernels' everywhere, the rest in float64.

Source: Kitaev et al., "Reformer: The Efficient Transformer", ICLR 2020, section 2 and appendix A. README.md says where
the paper and the published code differ, and what is computed here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.gaussian_table import thresholds
from attenuator.ops.yoso.reference_hashes import philox, quantise

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

ROTATIONS_STREAM = 5
NORM_FLOOR = 1e-12  # rows shorter than this are keys shorter than 1


def buckets_of(length: int, chunk_size: int, num_buckets: int) -> int:
    """How many buckets a round has: twice as many as chunks, as the paper takes, an even number within the bound."""
    return min(2 * -(-length // chunk_size), num_buckets // 2 * 2)


def rotations(seed: int, layer: int, head: int, hash_round: int, num_rows: int, head_dim: int) -> NDArray[np.int64]:
    """The random matrix of one round: odd integers, in units of 1/64 standard deviation.

    Args:
        seed: of the sequence.
        layer: of the node.
        head: index.
        hash_round: index of the round.
        num_rows: half the buckets.
        head_dim: coordinates of a row.

    Returns:
        `[num_rows, head_dim]`; element i of the rows laid end to end comes from half-word i of the round's stream, low
        half first, by the inverse-CDF table of YosoAttention's planes.
    """
    count = num_rows * head_dim
    counter = np.zeros((-(-count // 8), 4), np.uint64)
    counter[:, 0] = np.arange(len(counter))
    counter[:, 1], counter[:, 2], counter[:, 3] = hash_round | ROTATIONS_STREAM << 24, head, layer
    words = philox(seed, counter).reshape(-1)
    halves = np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1)[:count].astype(np.int64)
    upper = halves >= 2**15
    steps = np.searchsorted(
        np.asarray(thresholds()), np.where(upper, halves - 2**15, 2**15 - 1 - halves), side="right"
    )
    return np.where(upper, 2 * steps + 1, -2 * steps - 1).reshape(num_rows, head_dim)


def buckets(rows: NDArray[np.float32], matrix: NDArray[np.int64]) -> Indices:
    """argmax([xR; -xR]) of each row, the first of equal ones (section 2, "Locality sensitive hashing").

    Args:
        rows: `[n, head_dim]`, float32; each is rounded to 127 steps of its largest coordinate.
        matrix: `[half the buckets, head_dim]`, integers.

    Returns:
        `[n]`.
    """
    projected = quantise(rows) @ matrix.T
    return np.asarray(np.concatenate([projected, -projected], axis=1).argmax(axis=1))


def unit_keys(rows: Floats) -> NDArray[np.float64]:
    """x / |x| of each row `[n, head_dim]`; a zero row stays zero."""
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), NORM_FLOOR))


def seen_by_chunk(order: Indices, chunk_size: int) -> list[tuple[Indices, Indices]]:
    """For each chunk of the sorted rows: its rows, and the keys they see, those of the chunk before and its own.

    The first chunk sees the last one of the same round; a single chunk sees itself once.
    """
    chunks = [order[start : start + chunk_size] for start in range(0, len(order), chunk_size)]
    before = [chunks[index - 1] if len(chunks) > 1 else order[:0] for index in range(len(chunks))]
    return [(own, np.concatenate([previous, own])) for own, previous in zip(chunks, before, strict=True)]


def attend(
    rows: Floats, keys: NDArray[np.float64], value: Floats, queries: Indices, seen: Indices, scale: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Softmax attention of some rows over some keys; a row sees itself only where it sees nothing else.

    Args:
        rows: `[n, head_dim]`.
        keys: `[n, head_dim]`.
        value: `[n, value_dim]`.
        queries: which rows.
        seen: which keys.
        scale: factor on the scores.

    Returns:
        Mixed values `[queries, value_dim]`, and `[queries]` the logarithm of each row's sum of exponentials.
    """
    scores = scale * rows[queries].astype(np.float64) @ keys[seen].T
    if len(seen) > 1:
        scores[queries[:, None] == seen] = -np.inf
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total @ value[seen].astype(np.float64), (largest + np.log(total))[:, 0]


def attend_in_rounds(
    rows: NDArray[np.float32],
    value: Floats,
    seed: int,
    layer: int,
    head: int,
    num_rounds: int,
    scale: float,
    chunk_size: int,
    num_buckets: int,
) -> NDArray[np.float64]:
    """Every round's output with weights softmax over rounds of log sum exp (appendix A, without the division by N_ij).

    Args:
        rows: `[n, head_dim]` of one head of one sequence.
        value: `[n, value_dim]`.
        seed: of the sequence.
        layer: of the node.
        head: index.
        num_rounds: at least 1.
        scale: factor on the scores.
        chunk_size: rows of a chunk.
        num_buckets: bound on the buckets of a round.

    Returns:
        `[n, value_dim]`.
    """
    length, keys = len(rows), unit_keys(rows)
    half = buckets_of(length, chunk_size, num_buckets) // 2
    outputs = np.zeros((num_rounds, length, value.shape[1]))
    log_sums = np.zeros((num_rounds, length, 1))
    for hash_round in range(num_rounds):
        matrix = rotations(seed, layer, head, hash_round, half, rows.shape[1])
        order = np.argsort(buckets(rows, matrix), kind="stable")
        for queries, seen in seen_by_chunk(order, chunk_size):
            outputs[hash_round, queries], log_sums[hash_round, queries, 0] = attend(
                rows, keys, value, queries, seen, scale
            )
    weights = np.exp(log_sums - log_sums.max(axis=0))
    return np.asarray((weights * outputs).sum(axis=0) / weights.sum(axis=0))


def reformer_attention(
    query: NDArray[np.float32],
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    num_rounds: NDArray[np.int32],
    seed: NDArray[np.int64],
    *,
    num_heads: int,
    scale: float = 0.0,
    layer: int = 0,
    chunk_size: int = 64,
    num_buckets: int = 128,
) -> NDArray[np.float64]:
    """Kitaev et al., ICLR 2020, section 2 and appendix A, not causal, for each head of each sequence of a packed batch.

    Args:
        query: `[T, num_heads * head_dim]`, queries, and keys before their lengths are taken off.
        value: `[T, num_heads * value_dim]`.
        cu_seqlens: `[B + 1]`, offsets of the sequences.
        num_rounds: `[B]`; 0 is exact softmax attention, and so is any number where there are at most two chunks.
        seed: `[B]`.
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        layer: random stream.
        chunk_size: rows of a chunk.
        num_buckets: bound on the buckets of a round.

    Returns:
        `[T, num_heads * value_dim]`.
    """
    head_dim, value_dim = query.shape[1] // num_heads, value.shape[1] // num_heads
    factor = scale or head_dim**-0.5
    output = np.zeros((len(query), value.shape[1]))
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        every = np.arange(end - begin)
        for head in range(num_heads if begin < end else 0):
            rows = query[begin:end, head * head_dim : (head + 1) * head_dim]
            columns = slice(head * value_dim, (head + 1) * value_dim)
            values = value[begin:end, columns]
            if num_rounds[b] == 0 or len(every) <= 2 * chunk_size:
                output[begin:end, columns], _ = attend(rows, unit_keys(rows), values, every, every, factor)
            else:
                output[begin:end, columns] = attend_in_rounds(
                    rows, values, int(seed[b]), layer, head, int(num_rounds[b]), factor, chunk_size, num_buckets
                )
    return output
