"""NystromAttention in NumPy, float64, as plainly as it can be said."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.softmax.reference import softmax
from attenuator.ops.yoso.reference import convolution

Floats = NDArray[np.floating[Any]]
Array = NDArray[np.float64]


def segment_starts(tokens: int, landmarks: int) -> NDArray[np.int64]:
    """The first token of each segment, and `tokens` at the end: `[landmarks + 1]`.

    Segments have tokens // landmarks tokens, and the last tokens % landmarks of them one more. The paper (section 3.2)
    and the published text models have equal segments only; this is how the authors' image models split other lengths.
    """
    size, longer = divmod(tokens, landmarks)
    shorter = landmarks - longer
    index = np.arange(landmarks + 1)
    return index * size + np.maximum(index - shorter, 0)


def landmarks_of(rows: Floats, landmarks: int) -> Array:
    """Means of the rows of each segment: `[tokens, head_dim]` to `[landmarks, head_dim]`."""
    starts = segment_starts(len(rows), landmarks)
    means: Array = np.add.reduceat(rows.astype(np.float64), starts[:-1], axis=0) / np.diff(starts)[:, None]
    return means


def largest_column_sum(weights: Array) -> float:
    """||A||_1 of one head's landmark weights."""
    return float(weights.sum(axis=0).max())


def pseudo_inverse(weights: Array, iterations: int, divisor: float) -> Array:
    """Towards the Moore-Penrose inverse of A `[l, l]` by the paper's equation (11), from Z = A^T / divisor on.

    The paper divides by ||A||_1 ||A||_inf; the second is 1, since rows of A are shares.
    """
    identity = np.eye(len(weights))
    inverse: Array = weights.T / divisor
    for _ in range(iterations):
        product = weights @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse


def nystrom_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    num_landmarks: NDArray[np.int32],
    conv_weight: Floats | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    iterations: int = 6,
    divisor: str = "head",
) -> Array:
    """Xiong et al., AAAI 2021, equation (13) and algorithm 1, for each head of each sequence of a packed batch.

    Args:
        query: [T, num_heads * head_dim].
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_landmarks: [B]; 0, and any number not below the sequence's length, gives exact softmax attention.
        conv_weight: [num_heads, c], c odd: of the convolution that is added to the output, or None.
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        iterations: steps of `pseudo_inverse`.
        divisor: `head`, or `sequence` for the largest column sum of all heads of the sequence. The published code, and
            transformers, take the largest of the whole batch, which is the same for a sequence alone.

    Returns:
        [T, num_heads * value_dim].
    """
    head_dim, value_dim = key.shape[1] // num_heads, value.shape[1] // num_heads
    scale = scale or head_dim**-0.5
    output = np.zeros((len(query), value.shape[1]))
    for begin, end, landmarks in zip(cu_seqlens[:-1], cu_seqlens[1:], num_landmarks, strict=True):
        rows = [
            [side[begin:end, h * dim : (h + 1) * dim].astype(np.float64) for h in range(num_heads)]
            for side, dim in ((query, head_dim), (key, head_dim), (value, value_dim))
        ]
        mixed = []
        if landmarks == 0 or landmarks >= end - begin:
            mixed = [softmax(scale * q @ k.T) @ v if len(q) else v for q, k, v in zip(*rows, strict=True)]
        else:
            means = [[landmarks_of(each, landmarks) for each in side] for side in rows[:2]]
            cores = [softmax(scale * q @ k.T) for q, k in zip(*means, strict=True)]
            sums = [largest_column_sum(core) for core in cores]
            for h, (q, k, v) in enumerate(zip(*rows, strict=True)):
                inverse = pseudo_inverse(cores[h], iterations, max(sums) if divisor == "sequence" else sums[h])
                gathered = softmax(scale * means[0][h] @ k.T) @ v
                mixed.append(softmax(scale * q @ means[1][h].T) @ (inverse @ gathered))
        for h in range(num_heads):
            around = 0.0 if conv_weight is None else convolution(rows[2][h], conv_weight[h])
            output[begin:end, h * value_dim : (h + 1) * value_dim] = mixed[h] + around
    return output
