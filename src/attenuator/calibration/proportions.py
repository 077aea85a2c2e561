"""Proportions with their intervals and bounds, from counts alone."""

import itertools
import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from attenuator.calibration.records import Proportion

BISECTIONS = 50  # halve [0, 1] to near the spacing of float64 around 1


def proportion(successes: int, trials: int, confidence: float) -> Proportion:
    """A proportion as `calibration.json` has it.

    Args:
        successes: texts that have a property.
        trials: texts, at least one.
        confidence: of the interval and the bound, between 0.5 and 1.
    """
    low, high = wilson(successes, trials, confidence)
    share = successes / trials  # at 0 and 1 an end of the interval, but for rounding
    bound = lower_bound(successes, trials, confidence)
    return Proportion(successes=successes, trials=trials, low=min(low, share), high=max(high, share), bound=bound)


def wilson(successes: float, trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's two-sided score interval (1927)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    middle = share + z * z / (2 * trials)
    radius = z * math.sqrt(share * (1 - share) / trials + (z / trials) ** 2 / 4)
    scale = 1 + z * z / trials
    return max(0.0, (middle - radius) / scale), min(1.0, (middle + radius) / scale)


@lru_cache(maxsize=4096)  # the same counts come again, over settings and lengths
def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """Clopper and Pearson's one-sided lower bound (1934).

    It is the share p at which as many successes or more are seen with probability 1 - `confidence`: whatever the true
    share, the bound lies above it with that probability at most.
    """
    if successes == 0:
        return 0.0
    counts = np.arange(successes, trials + 1)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    log_ways = log_factorial[trials] - log_factorial[counts] - log_factorial[trials - counts]
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        share = (low + high) / 2
        logs = log_ways + counts * math.log(share) + (trials - counts) * math.log1p(-share)
        low, high = (share, high) if np.exp(logs).sum() < 1 - confidence else (low, share)
    return low


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """Clopper and Pearson's one-sided upper bound: the lower bound of the failures, seen from the other side."""
    return 1 - lower_bound(trials - successes, trials, confidence)


def fewest_texts(agreement: float, confidence: float) -> int:
    """How many texts it takes to show an agreement: with fewer the bound stays below it even if no answer changes.

    Args:
        agreement: the goal, at least 0 and below 1.
        confidence: of the bound.
    """
    if agreement <= 0:
        return 1
    return math.ceil(math.log(1 - confidence) / math.log(agreement))


def fewest_divided(judging: int, choosing_share: float) -> int:
    """How many texts it takes for so many to judge, where a share of them, rounded, only chooses.

    Args:
        judging: texts that must be left to judge.
        choosing_share: at least 0 and below 1.
    """
    texts = max(judging, math.floor((judging - 1) / (1 - choosing_share)))  # rounding moves one text at most
    return next(count for count in itertools.count(texts) if count - round(choosing_share * count) >= judging)
