"""The decisions that MCA makes from its data, by the rule of `rule.py`: ops/mca/README.md, section 2.

The operator makes the same decisions (projection.cc). They may differ only for a token whose r, or a head whose
savings, lie within rounding of a threshold.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.mca.rule import (
    BREAK_EVEN,
    COLUMN_COST,
    DRAW_BITS,
    ROUNDING_MARGIN,
    TOKEN_GAIN,
    Probe,
    head_cost,
    row_keys,
)
from attenuator.ops.softmax.reference import Positions, visible

Floats = NDArray[np.floating[Any]]
Float64s = NDArray[np.float64]


def required_samples(maxima: Floats, keys: int, alpha: float, growth: float = 1.0) -> Float64s:
    """(n growth max_i A_ij / alpha)^2 for each token, [n]: r_j before it is rounded up."""
    with np.errstate(over="ignore"):
        return np.asarray((keys / alpha * growth * maxima.astype(np.float64)) ** 2)


def samples_of(required: Float64s, channels: int) -> tuple[Float64s, NDArray[np.bool_]]:
    """r_j, and which tokens the estimator `sampled` samples: [n] each."""
    r = np.maximum(1.0, np.ceil(required))
    return r, r < np.ceil(BREAK_EVEN * channels)


def worth_sampling(tokens: float, samples: float, channels: int, head_dim: int, overhead: float) -> bool:
    """Whether sampling `tokens` tokens with `samples` columns in all is faster than computing them exactly."""
    return tokens * (TOKEN_GAIN * channels) - COLUMN_COST * samples >= head_cost(head_dim) * channels + overhead


def paper_distribution(weight: Floats) -> tuple[NDArray[np.uint64], Float64s]:
    """The distribution function of `paper`'s draws in units of 2^-DRAW_BITS, and the probabilities it gives: [C] each.

    Draws and weights use the same probabilities, so that the estimate is unbiased but for columns that have lost
    theirs: those of p_k < 2^-DRAW_BITS, each of which errs by less than the rounding of float32 does.
    """
    squares = (weight.astype(np.float64) ** 2).sum(axis=1)
    cdf = (np.minimum(1.0, np.cumsum(squares) / squares.sum()) * 2.0**DRAW_BITS).astype(np.uint64)
    cdf[np.nonzero(squares)[0][-1] :] = 2**DRAW_BITS
    return cdf, np.diff(cdf, prepend=np.uint64(0)).astype(np.float64) / 2.0**DRAW_BITS


def paper_draws(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Uniform integers below 2^DRAW_BITS, each from two words, the high one first: [words / 2]."""
    wide = words.astype(np.uint64)
    return (wide[0::2] << np.uint64(32) | wide[1::2]) >> np.uint64(64 - DRAW_BITS)


def replaced(
    distances: Float64s, weight: Floats, maxima: Float64s, keys: int, alpha: float, beta: float
) -> NDArray[np.bool_]:
    """Tokens that `deterministic` may replace by the mean row: keys max_i A_ij ||x_j - mu|| ||W||_2 is small: [n]."""
    weight = weight.astype(np.float64)
    error = keys * maxima * distances * np.linalg.norm(weight, 2)
    return np.asarray(error <= alpha * (1 - ROUNDING_MARGIN) * beta * np.linalg.norm(weight))


def probe_pays(
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
        maxima: max A_ij over the probe's rows, [n].
        distances: ||x_j - mu||, [n]; `deterministic`.
        weight: W_a, [C, head_dim].
        keys: n of the formula for r.
        alpha: the knob.
        estimator: "sampled" or "deterministic".
        probe: `probe_of`.
        overhead: cost of approximating the head beside its tokens, in columns, including that of the maxima.
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
    r, sampled = samples_of(required_samples(maxima[looked_at], keys, alpha, growth), channels)
    return worth_sampling(share * sampled.sum(), share * r[sampled].sum(), channels, head_dim, overhead)


def span_of(positions: Positions | None) -> int | None:
    """Last position less the first, of a sequence that is not empty."""
    return None if positions is None else int(positions[-1] - positions[0])


def smallest_row_sum(values: Float64s, window: int, global_tokens: int, positions: Positions | None = None) -> float:
    """Smallest sum of `values` [n] over the keys that a row sees; row 0 of a global window aside."""
    length = len(values)
    keys, wide_first = row_keys(length, window, global_tokens, span_of(positions))
    seen = visible(length, length, window, global_tokens, positions)[int(wide_first) :]
    return float(min(values[row].sum() for row in seen))


def centre_of(hidden: Floats, window: int = 0, global_tokens: int = 0, positions: Positions | None = None) -> Float64s:
    """The mean row where the rows lie no further from it than from 0 (on average, for every row's keys), else zeros."""
    mean = hidden.astype(np.float64).mean(axis=0).astype(np.float32).astype(np.float64)
    gain = np.linalg.norm(hidden.astype(np.float64), axis=1) - np.linalg.norm(hidden - mean, axis=1)
    return mean if smallest_row_sum(gain, window, global_tokens, positions) >= 0 else np.zeros_like(mean)
