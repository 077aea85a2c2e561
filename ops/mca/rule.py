"""MCA's rule: what approximating a head costs and saves, as far as that follows from shapes and the knob alone.

The constants stand here and nowhere else: `ops/codegen.py` writes them into `mca_rule.gen.h` (`COLUMN_COST` becomes
`kColumnCost`), and the CPU and CUDA kernels, the reference and the predicted cost all read them. Costs are in columns
of a dense row unless another unit is named. `ops/mca/README.md`, section 2, has the mathematics; sequence.cc has the
functions below in C++.
"""

import math
from dataclasses import dataclass

# Measured on the CPU and rounded up to fractions that are exact in binary, so that every device decides alike.
COLUMN_COST = 1.5  # a sampled column: it subtracts the mean row and is reached through a list of indices
# A sampled token costs (1 - TOKEN_GAIN) C columns even if it keeps none: its share of a group's work, and cache misses.
TOKEN_GAIN = 0.875
BREAK_EVEN = 0.5625  # a token that would keep this share of C or more is computed exactly: sampling it saves nothing
# Fixed cost of sampling a head, in dense rows: HEAD_COST + HEAD_COST_LANES / padded head_dim. It covers projecting the
# mean row (bound by reading the weight), the first read of the scaled weight, and drawing and selecting columns. That
# last part does not depend on head_dim, so it equals more dense rows where these are narrow.
HEAD_COST = 24.0
HEAD_COST_LANES = 256.0

# Up to this many tokens a head keeps its attention weights (at most 2.25 MiB per thread) and is one task. For a longer
# sequence the scores are computed twice. With a window the limit applies to the keys of a row; a sequence whose rows
# see more keys is computed exactly.
STORED_LENGTH = 768
# Extra cost of finding the column maxima, per attention weight. Where scores are computed twice it is TWICE_COST. Where
# weights are kept it is STORING_COST times the floats that the head has in use, at most TWICE_COST: it grows with the
# memory because floats outside the second-level cache are slow.
TWICE_COST = 1.5
STORING_COST = 3 * 2.0**-22

PROBE_ROWS = 64  # rows whose maxima predict whether finding all maxima pays; one block of rows in the attention kernel
# The largest of n normally distributed scores lies about sqrt(2 ln n) deviations above the mean. Maxima over all rows
# are predicted from those of the probe: the factor g by which these exceed 1 / keys on average is raised to the power
# log2(rows / PROBE_ROWS) / GROWTH_DIVISOR, and the probe's maxima are multiplied by that.
GROWTH_DIVISOR = 8.0

ROUNDING_MARGIN = 1 / 16  # share of the deterministic bound that is reserved for float32 rounding errors
SAMPLE_GROUP = 6  # tokens, in order of r, that share one list of sampled columns
# Smaller probabilities, except 0, are raised to this value, far above 2^-32, the resolution of a uniform number.
# Raising one lowers the variance and increases the expected number of columns by at most a share of C * 2^-22.
SMALLEST_P = 2.0**-22
# Bits of a uniform number of `paper`, two words of the random stream: as many as a float64 distribution function has.
DRAW_BITS = 53
PADDING = 16  # columns of a packed weight are padded to a multiple of this, with zeros


def padded(head_dim: int) -> int:
    """head_dim rounded up to a multiple of PADDING, as in the kernels' packed weights."""
    return -(-head_dim // PADDING) * PADDING


def head_cost(head_dim: int) -> float:
    """Fixed cost of sampling a head, in dense rows."""
    return HEAD_COST + HEAD_COST_LANES / padded(head_dim)


def is_narrow(length: int, window: int, span: int | None = None) -> bool:
    """Whether some row does not see all keys.

    Args:
        length: tokens.
        window: keys with |i - j| <= window; 0 = all.
        span: last position less the first, where positions are given; here and in the functions below.
    """
    return 0 < window < (length - 1 if span is None else span)


def row_keys(length: int, window: int, global_tokens: int, span: int | None = None) -> tuple[int, bool]:
    """The most keys a row can see (n in the formula for r), and whether only row 0 sees all (then it is exact)."""
    if not is_narrow(length, window, span):
        return length, False
    return min(length, 2 * window + 1 + global_tokens), bool(global_tokens)


def maxima_cost(length: int, window: int, head_dim: int, span: int | None = None) -> float:
    """Extra cost for a head of finding its column maxima, in columns, on top of exact attention."""
    narrow = is_narrow(length, window, span)
    weights = float(length * min(length, PROBE_ROWS + 2 * window if narrow else length))
    if not narrow and length > STORED_LENGTH:
        return TWICE_COST * weights
    # Beside the weights: queries, keys, values and output.
    in_use = weights + 4 * length * padded(head_dim)
    return min(TWICE_COST, STORING_COST * in_use) * weights


def worth_approximating(
    length: int,
    channels: int,
    alpha: float,
    estimator: str,
    window: int = 0,
    global_tokens: int = 0,
    span: int | None = None,
) -> bool:
    """Whether any token may be approximated, judged from shapes and alpha only.

    Since sum_j max_i A_ij >= 1, the mean of r_j is at least 1 / alpha^2.
    """
    keys = row_keys(length, window, global_tokens, span)[0]
    if is_narrow(length, window, span) and keys > STORED_LENGTH:
        return False
    if estimator == "paper":
        return True
    if estimator == "sampled" and alpha * alpha * channels <= 1:
        return False
    return keys <= STORED_LENGTH or 2 * keys <= channels


@dataclass(frozen=True, slots=True)
class Probe:
    """A block of rows of a head, whose column maxima predict whether approximating the head pays.

    Attributes:
        first_row: first row of the block.
        rows: number of rows; 0 if the head is not probed.
        first_token: first token whose maximum is used.
        tokens: number of tokens whose maxima are used.
        growth_exponent: maxima over all rows are predicted as the probe's maxima times g to this power, where g is
            their mean in units of 1 / keys.
    """

    first_row: int = 0
    rows: int = 0
    first_token: int = 0
    tokens: int = 0
    growth_exponent: float = 0.0


def probe_of(length: int, window: int, span: int | None = None) -> Probe:
    """The first 64 rows and all tokens; with a window, the first block whose rows see `window` keys before them."""
    if is_narrow(length, window, span):
        first = -(-window // PROBE_ROWS) * PROBE_ROWS
        probe = Probe(first, PROBE_ROWS, first, PROBE_ROWS, _growth_exponent(min(length, 2 * window + 1)))
    else:
        probe = Probe(0, PROBE_ROWS, 0, length, _growth_exponent(length))
    return probe if probe.first_row + probe.rows < length else Probe()


def _growth_exponent(rows: int) -> float:
    """`Probe.growth_exponent` for tokens that are keys of `rows` rows."""
    return max(0.0, math.log2(rows / PROBE_ROWS) / GROWTH_DIVISOR)
