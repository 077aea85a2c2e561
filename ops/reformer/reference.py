"""ReformerAttention in NumPy: buckets in integers, equal to the kernels' everywhere, the rest in float64.

Source: Kitaev et al., "Reformer: The Efficient Transformer", ICLR 2020, section 2 and appendix A. README.md says where
the paper and the published code differ, and what is computed here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.reformer.rule import is_exact
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
    steps = np.searchsorted(np.asarray(thresholds()), np.where(upper, halves - 2**15, 2**15 - 1 - halves), side="right")
    return np.where(upper, 2 * steps + 1, -2 * steps - 1).reshape(num_rows, head_dim)


def buckets(rows: NDArray[np.float32], matrix: NDArray[np.int64]) -> Indices:
    """The bucket argmax([xR; -xR]) of each row, the first of equal ones (section 2, "Locality sensitive hashing").

    Args:
        rows: `[n, head_dim]`, float32; each is rounded to 127 steps of its largest coordinate.
        matrix: `[half the buckets, head_dim]`, integers.

    Returns:
        `[n]`.
    """
    projected = quantise(rows) @ matrix.T
    return np.asarray(np.concatenate([projected, -projected], axis=1).argmax(axis=1))


def unit_keys(rows: Floats) -> NDArray[np.float64]:
    """Each row x over its length, x / |x|: `[n, head_dim]`; a zero row stays zero."""
    wide = rows.astype(np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), NORM_FLOOR))


def chunks_of(order: Indices, chunk_size: int) -> Indices:
    """The chunk in which each row lies `[n]`, of the rows in sorted order."""
    chunk = np.empty(len(order), np.int64)
    chunk[order] = np.arange(len(order)) // chunk_size
    return chunk


def sees(chunk: Indices) -> NDArray[np.bool_]:
    """Whether row i sees row j in a round `[n, n]`: it lies in its own chunk or in the one before (section 2).

    The chunk before the first one is the last one of the same round.
    """
    before = (chunk - 1) % (chunk.max() + 1)
    return np.asarray((chunk[:, None] == chunk) | (before[:, None] == chunk))


def attend(logits: NDArray[np.float64], value: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Softmax attention in which a row sees itself only where it sees nothing else.

    The published code gives a row's own key the logit -1e5, which is the same unless all others are below that.

    Args:
        logits: `[n, n]`, -inf where row i does not see key j.
        value: `[n, value_dim]`.

    Returns:
        Mixed values `[n, value_dim]`, and the logarithm of each row's sum of exponentials `[n, 1]`.
    """
    if len(logits) > 1:
        logits = np.where(np.eye(len(logits), dtype=bool), -np.inf, logits)
    largest = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - largest)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total @ value.astype(np.float64), largest + np.log(total)


def attend_in_rounds(
    logits: NDArray[np.float64], value: Floats, chunks: list[Indices]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every round's output with weights softmax over rounds of log sum exp, as appendix A has it.

    A pair that meets in N_ij rounds has the logit less log N_ij in each of them.

    Args:
        logits: `[n, n]`.
        value: `[n, value_dim]`.
        chunks: of each round, the chunk in which each row lies `[n]`.

    Returns:
        `[n, value_dim]`, and `[n, 1]` as `attend`.
    """
    seen = [sees(chunk) for chunk in chunks]
    with np.errstate(divide="ignore"):
        discount = np.log(np.sum(seen, axis=0))
    rounds = [attend(np.where(sight, logits - np.maximum(discount, 0), -np.inf), value) for sight in seen]
    log_sums = np.stack([log_sum for _, log_sum in rounds])
    weights = np.exp(log_sums - log_sums.max(axis=0))
    total = weights.sum(axis=0)
    mixed = (weights * np.stack([output for output, _ in rounds])).sum(axis=0) / total
    return mixed, log_sums.max(axis=0) + np.log(total)


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
        num_rounds: `[B]`; 0 is exact softmax attention, and so is what `is_exact` says.
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
    output = np.zeros((len(query), value.shape[1]))
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        length = int(end - begin)
        rounds = 0 if is_exact(length, chunk_size, int(num_rounds[b])) else int(num_rounds[b])
        half = buckets_of(length, chunk_size, num_buckets) // 2
        for head in range(num_heads if length else 0):
            rows = query[begin:end, head * head_dim : (head + 1) * head_dim]
            columns = slice(head * value_dim, (head + 1) * value_dim)
            values = value[begin:end, columns]
            logits = (scale or head_dim**-0.5) * rows.astype(np.float64) @ unit_keys(rows).T
            matrices = [rotations(int(seed[b]), layer, head, number, half, head_dim) for number in range(rounds)]
            orders = [np.argsort(buckets(rows, matrix), kind="stable") for matrix in matrices]
            chunks = [chunks_of(order, chunk_size) for order in orders]
            mixed, _ = attend_in_rounds(logits, values, chunks) if chunks else attend(logits, values)
            output[begin:end, columns] = mixed
    return output
