"""MCA's rule: what approximating a head costs and saves, as far as that follows from shapes and the knob alone.

The constants stand here and nowhere else: `ops/codegen.py` writes them into `mca_rule.gen.h` (`COLUMN_COST` becomes
`kColumnCost`), and the CPU and CUDA kernels, the reference and the predicted cost all read them. Costs are in columns
of a dense row unless something else is said. `ops/mca/README.md`, section 2, has the mathematics; sequence.cc has the
functions below in C++.
"""

import math
from dataclasses import dataclass

# Measured on the CPU and rounded up to fractions that are exact in binary, so that every device decides alike.
COLUMN_COST = 1.5  # a sampled column: the mean row is subtracted, the list of columns is followed
# A token takes (1 - TOKEN_GAIN) C columns however few it keeps: its share of a group's work, and rows that arrive cold.
TOKEN_GAIN = 0.875
BREAK_EVEN = 0.5625  # share of C from which sampling a token gains nothing: it is computed exactly, without an error
# Dense rows that take as long as what any sampling of a head begins with: the mean row, bound by reading the weight;
# the first use of the scaled copy; drawing and selecting, which weigh the more beside a dense row the narrower it is:
# HEAD_COST + HEAD_COST_LANES / padded head_dim.
HEAD_COST = 24.0
HEAD_COST_LANES = 256.0

# Tokens up to which a head keeps its attention weights (2.25 MiB a thread at most) and is one task. The scores of a
# longer sequence are computed twice. Under a window this bounds the keys of a row; beyond it nothing is approximated.
STORED_LENGTH = 768
# What finding the column maxima costs beside exact attention, for each attention weight: TWICE_COST where scores are
# computed twice; where weights are kept, STORING_COST for each float that a head has in use meanwhile, since what does
# not fit into the second-level cache is slow, up to TWICE_COST.
TWICE_COST = 1.5
STORING_COST = 3 * 2.0**-22

PROBE_ROWS = 64  # their maxima tell whether finding all maxima will pay; attention takes as many rows at a time
# Of scores that are normally distributed the largest of n is sqrt(2 ln n) deviations away, so that the factor by which
# a maximum exceeds 1 / keys grows by a power: log2(rows / PROBE_ROWS) / GROWTH_DIVISOR.
GROWTH_DIVISOR = 8.0

ROUNDING_MARGIN = 1 / 16  # share of the deterministic bound that is left to the rounding of float32
SAMPLE_GROUP = 6  # tokens, in order of r, that share one list of sampled columns
# Probabilities that are smaller but not zero are raised to this, so that 2^-32, the grain of a uniform number, stays
# far below them. Raising one lowers the variance and adds at most C * 2^-22 of the expected number of columns.
SMALLEST_P = 2.0**-22
# Bits of a uniform number of `paper`, two words of the random stream: as many as a float64 distribution function has.
DRAW_BITS = 53
PADDING = 16  # columns of a packed weight are padded to a multiple of this, with zeros


def padded(head_dim: int) -> int:
    """head_dim as the kernels round it up, to whole vectors."""
    return -(-head_dim // PADDING) * PADDING


def head_cost(head_dim: int) -> float:
    """Dense rows that sampling a head takes before it saves anything."""
    return HEAD_COST + HEAD_COST_LANES / padded(head_dim)


def is_narrow(length: int, window: int) -> bool:
    """Whether some row does not see all keys."""
    return 0 < window < length - 1


def row_keys(length: int, window: int, global_tokens: int) -> tuple[int, bool]:
    """What n is in the formula for r, and whether row 0 sees all keys though others do not (then it is exact)."""
    if not is_narrow(length, window):
        return length, False
    return min(length, 2 * window + 1 + global_tokens), bool(global_tokens)


def maxima_cost(length: int, window: int, head_dim: int) -> float:
    """Columns that finding the column maxima costs a head beside exact attention."""
    narrow = is_narrow(length, window)
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
    if is_narrow(length, window) and keys > STORED_LENGTH:
        return False
    if estimator == "paper":
        return True
    if estimator == "sampled" and alpha * alpha * channels <= 1:
        return False
    return keys <= STORED_LENGTH or 2 * keys <= channels


@dataclass(frozen=True, slots=True)
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
    if is_narrow(length, window):
        first = -(-window // PROBE_ROWS) * PROBE_ROWS
        probe = Probe(first, PROBE_ROWS, first, PROBE_ROWS, _growth_exponent(min(length, 2 * window + 1)))
    else:
        probe = Probe(0, PROBE_ROWS, 0, length, _growth_exponent(length))
    return probe if probe.first_row + probe.rows < length else Probe()


def _growth_exponent(rows: int) -> float:
    """`Probe.growth_exponent` for tokens that so many rows see."""
    return max(0.0, math.log2(rows / PROBE_ROWS) / GROWTH_DIVISOR)
