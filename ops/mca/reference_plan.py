"""What approximating a head costs and saves, and the decisions made from it: ops/mca/README.md, section 2.

The same rules as in projection.cc and sequence.cc, on which the operator's results depend: only a token whose r, or a
head whose savings, lie within rounding of a threshold may be decided otherwise.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]

# What sampling costs, beside dense columns (ops/mca/cpu/projection.h has the reasons).
COLUMN_COST = 1.5  # of a sampled column
TOKEN_GAIN = 0.875  # share of C that a token may save at most
BREAK_EVEN = 0.5625  # share of C from which a token is computed exactly
HEAD_COST, HEAD_COST_LANES = 24, 256  # dense rows that a head has to save before anything is sampled
# Tokens, and under a window keys of a row, up to which attention weights are kept; beyond, scores are computed twice
# without a window, and nothing is approximated under one.
STORED_LENGTH = 768
TWICE_COST = 1.5  # columns that the maxima cost for each attention weight where scores are computed twice
STORING_COST = 3 * 2.0**-22  # where weights are kept: for each times the floats in use meanwhile, up to TWICE_COST
PROBE_ROWS = 64  # tell whether finding all maxima will pay; attention takes as many at a time
ROUNDING_MARGIN = 1 / 16  # share of the deterministic bound left to the rounding of float32


def wanted_samples(maxima: Floats, keys: int, alpha: float, growth: float = 1.0) -> Float64s:
    """(n max_i A_ij / alpha)^2 before it is rounded up to r_j, of maxima that are still to grow by a factor: [n]."""
    with np.errstate(over="ignore"):
        return np.asarray((keys / alpha * growth * maxima.astype(np.float64)) ** 2)


def padded(head_dim: int) -> int:
    """head_dim as the kernels round it up, to whole vectors."""
    return -(-head_dim // 16) * 16


def head_cost(head_dim: int) -> float:
    """Dense rows that sampling a head takes before it saves anything."""
    return HEAD_COST + HEAD_COST_LANES / padded(head_dim)


def samples_of(wanted: Float64s, channels: int) -> tuple[Float64s, NDArray[np.bool_]]:
    """r_j and which tokens are sampled, of `sampled`: [n] each."""
    r = np.maximum(1.0, np.ceil(wanted))
    return r, r < np.ceil(BREAK_EVEN * channels)


def worth_sampling(tokens: float, samples: float, channels: int, head_dim: int, overhead: float) -> bool:
    """Whether sampling so many tokens, with so many columns in all, is faster than not to."""
    return tokens * (TOKEN_GAIN * channels) - COLUMN_COST * samples >= head_cost(head_dim) * channels + overhead


def replaced(
    distances: Float64s, weight: Floats, maxima: Float64s, keys: int, alpha: float, beta: float
) -> NDArray[np.bool_]:
    """Tokens that `deterministic` may replace by the mean row: keys max_i A_ij ||x_j - mu|| ||W||_2 is small: [n]."""
    weight = weight.astype(np.float64)
    error = keys * maxima * distances * np.linalg.norm(weight, 2)
    return np.asarray(error <= alpha * (1 - ROUNDING_MARGIN) * beta * np.linalg.norm(weight))


def row_keys(length: int, window: int, global_tokens: int) -> tuple[int, bool]:
    """What n is in the formula for r, and whether row 0 sees all keys though others do not (then it is exact)."""
    if window == 0 or length - 1 <= window:
        return length, False
    return min(length, 2 * window + 1 + global_tokens), bool(global_tokens)


def maxima_cost(length: int, window: int, head_dim: int) -> float:
    """Columns that finding the column maxima costs a head beside exact attention."""
    narrow = 0 < window < length - 1
    weights = float(length * min(length, PROBE_ROWS + 2 * window if narrow else length))
    if not narrow and length > STORED_LENGTH:
        return TWICE_COST * weights
    # Beside the weights: queries, keys, values and output.
    in_use = weights + 4 * length * padded(head_dim)
    return min(TWICE_COST, STORING_COST * in_use) * weights


def worth_approximating(
    length: int, channels: int, alpha: float, estimator: str, window: int = 0, global_tokens: int = 0
) -> bool:
    """Whether anything may be approximated, as far as it can be told without the data.

    As sum_j max_i A_ij >= 1, the mean of r_j is at least 1 / alpha^2.
    """
    keys = row_keys(length, window, global_tokens)[0]
    if 0 < window < length - 1 and keys > STORED_LENGTH:
        return False
    if estimator == "paper":
        return True
    if estimator == "sampled" and alpha * alpha * channels <= 1:
        return False
    return keys <= STORED_LENGTH or 2 * keys <= channels


@dataclass(frozen=True)
class Probe:
    """A block of rows of a head, whose maxima tell whether to go on.

    Attributes:
        first_row: of the probe.
        rows: how many; 0 where nothing is asked.
        first_token: of those that are looked at.
        tokens: how many are.
        growth_exponent: over the other rows their maxima are expected to grow by their mean, in units of 1 / keys, to
            this power.
    """

    first_row: int = 0
    rows: int = 0
    first_token: int = 0
    tokens: int = 0
    growth_exponent: float = 0.0


def probe_of(length: int, window: int) -> Probe:
    """The first 64 rows, and all tokens; with a window the first block of 64 that begins as far from the start."""
    if 0 < window < length - 1:
        first = -(-window // PROBE_ROWS) * PROBE_ROWS
        exponent = max(0.0, math.log2(min(length, 2 * window + 1) / PROBE_ROWS) / 8)
        probe = Probe(first, PROBE_ROWS, first, PROBE_ROWS, exponent)
    else:
        probe = Probe(0, PROBE_ROWS, 0, length, max(0.0, math.log2(length / PROBE_ROWS) / 8))
    return probe if probe.first_row + probe.rows < length else Probe()


def promising(
    maxima: Floats,
    distances: Float64s,
    weight: Floats,
    keys: int,
    alpha: float,
    estimator: str,
    probe: Probe,
    overhead: float,
    beta: float,
) -> bool:
    """Whether approximating a head is likely to save more than finding its column maxima costs.

    Args:
        maxima: max A_ij over the probe's rows that count, [n].
        distances: ||x_j - mu||, [n]; `deterministic`.
        weight: W_a, [C, head_dim].
        keys: n of the formula for r.
        alpha: the knob.
        estimator: "sampled" or "deterministic".
        probe: `probe_of`.
        overhead: columns that approximating costs the head beside its tokens, those of the maxima among them.
        beta: the smallest mean norm over a row's keys; `deterministic`.

    Returns:
        False: the head is exact.
    """
    length, (channels, head_dim) = len(maxima), weight.shape
    looked_at = slice(probe.first_token, probe.first_token + probe.tokens)
    mean = keys / probe.tokens * float(maxima[looked_at].sum(dtype=np.float64))
    growth = max(1.0, mean) ** probe.growth_exponent
    share = length / probe.tokens
    if estimator == "deterministic":
        grown = growth * maxima[looked_at].astype(np.float64)
        tokens = share * replaced(distances[looked_at], weight, grown, keys, alpha, beta).sum()
        return bool(channels * (tokens - 1) > overhead)
    r, sampled = samples_of(wanted_samples(maxima[looked_at], keys, alpha, growth), channels)
    return worth_sampling(share * sampled.sum(), share * r[sampled].sum(), channels, head_dim, overhead)
