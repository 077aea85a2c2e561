"""Which rows and columns each head of each sequence of a packed batch has: what the NumPy references walk over."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["HeadOfSequence", "heads_of_sequences"]


class HeadOfSequence(NamedTuple):
    """One head of one sequence that is not empty.

    Attributes:
        sequence: its index.
        head: index of the head.
        length: tokens of the sequence.
        rows: its rows of query and output.
        keys: its rows of key and value.
        columns: the head's columns of query and key.
        values: the head's columns of value and output.
    """

    sequence: int
    head: int
    length: int
    rows: slice
    keys: slice
    columns: slice
    values: slice


def heads_of_sequences(
    key: NDArray[Any], value: NDArray[Any], cu_seqlens: NDArray[np.int32], num_heads: int, queries: str = "all"
) -> Iterator[HeadOfSequence]:
    """Every head of every sequence, in order.

    Args:
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_heads: heads.
        queries: `all`, or `first`: query has one row for each sequence.
    """
    head_dim, value_dim = key.shape[1] // num_heads, value.shape[1] // num_heads
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        keys = slice(begin, end)
        for h in range(num_heads if begin < end else 0):
            yield HeadOfSequence(
                b,
                h,
                end - begin,
                keys if queries == "all" else slice(b, b + 1),
                keys,
                slice(h * head_dim, (h + 1) * head_dim),
                slice(h * value_dim, (h + 1) * value_dim),
            )
