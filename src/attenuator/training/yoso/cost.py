"""Predicted times of the ways to compute a gradient, and the choice of the one that takes less."""

from __future__ import annotations

import math

from attenuator.training.yoso.hashing import Hashing

__all__ = ["cheapest", "pairs_take_less"]

# Nanoseconds a head, measured on two threads of a processor with AVX-512.
COLUMN = 0.2  # of a token in one table: a column added up and looked up, its share of the hashing
PAIR = 4.0  # of a pair: what depends on nothing else
PAIR_HASH = 0.3  # of a pair: one hash's codes compared
PAIR_CHANNEL = 0.01  # of a pair: a channel of one product of matrices
TRUE_SLOPE = 5.0  # of a pair: arccos and power of the true derivative
BUCKET_ROW = 60.0  # of a token in one hash: its place in the order of codes, its rows fetched and added to
BUCKET_CHANNEL = 0.025  # of a pair of one bucket: a channel of one product of matrices
BUCKET_SLOPE = 6.5  # of a pair of one bucket: its cosine and true derivative, whether it has met before

AS_LONG = 1.25  # times that differ by less count as equal: predictions are no better


def pairs_cost(hashing: Hashing, head_dim: int, value_dim: int) -> float:
    """Nanoseconds a head of `pairs.pair_gradients` with eq. 4's lower bound."""
    of_pair = PAIR + PAIR_HASH * hashing.num_hashes + PAIR_CHANNEL * (3 * head_dim + 2 * value_dim)
    return of_pair * pairs(hashing)


def tables_cost(hashing: Hashing, head_dim: int, value_dim: int) -> float:
    """Nanoseconds a head of `tables.table_gradients`."""
    columns = 2 * head_dim * value_dim + value_dim
    tokens = sum(place.stop - place.start for place, _ in hashing.sequences)
    return COLUMN * columns * tokens * hashing.num_hashes


def buckets_cost(hashing: Hashing, head_dim: int, value_dim: int, collided: bool) -> float:
    """Nanoseconds a head of `compiled.bucket_gradients`, of rows whose codes are spread evenly."""
    of_pair = BUCKET_CHANNEL * (2 * head_dim + value_dim) + BUCKET_SLOPE * collided
    # With eq. 4 full buckets go through sums over their rows, which cost as much as so many pairs of each row.
    limit = math.inf if collided else 4 / 3 * value_dim
    lengths = [place.stop - place.start for place, _ in hashing.sequences]
    rows = (tokens * (BUCKET_ROW + of_pair * min(tokens / 2**hashing.hash_bits, limit)) for tokens in lengths)
    return sum(rows) * hashing.num_hashes


def pairs(hashing: Hashing) -> int:
    """Pairs of a query and a key of the same sequence."""
    return sum((place.stop - place.start) ** 2 for place, _ in hashing.sequences)


def pairs_take_less(hashing: Hashing, head_dim: int, value_dim: int) -> bool:
    """Whether eq. 4 takes less time over pairs than through tables."""
    return pairs_cost(hashing, head_dim, value_dim) < tables_cost(hashing, head_dim, value_dim)


def cheapest(hashing: Hashing, head_dim: int, value_dim: int, compiled: bool) -> str:
    """Of eq. 4 and *YOSO the one that takes less time; *YOSO where they take about as long, since its mean is closer.

    Args:
        hashing: which hashes.
        head_dim: channels of a head's queries and keys.
        value_dim: of its values.
        compiled: whether the library computes gradients of these rows.

    Returns:
        One of `settings.GRADIENTS`.
    """
    if compiled and hashing.num_hashes:
        bound, collided = (buckets_cost(hashing, head_dim, value_dim, kind) for kind in (False, True))
    else:
        bound = tables_cost(hashing, head_dim, value_dim)
        collided = pairs_cost(hashing, head_dim, value_dim) + TRUE_SLOPE * pairs(hashing)
    return "collided" if collided <= AS_LONG * bound else "bound"
