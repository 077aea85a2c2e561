"""Times contenders in turns, so that whatever disturbs the machine disturbs all of them alike."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# A sample repeats its run until it lasts this long: the clock and the call around it then cost nothing.
SAMPLE_NS = 3_000_000
MOST_REPEATS = 500
LONG_NS = 100_000_000
FEWEST_ROUNDS, MOST_ROUNDS = 3, 31
# Resamples from which the spread of a ratio of medians is told.
RESAMPLES = 400

# Runs something a number of times; nanoseconds that all runs took together, on its own clock and on the wall's.
Sampler = Callable[[Callable[[], Any], int], tuple[float, float]]
Statistics = dict[str, float]


def cpu_sampler(threads: int) -> Sampler:
    """CPU time of what runs: of the calling thread where it does all the work, else of the process."""
    clock = time.thread_time_ns if threads == 1 else time.process_time_ns

    def sample(run: Callable[[], Any], count: int) -> tuple[float, float]:
        wall_start, own_start = time.perf_counter_ns(), clock()
        for _ in range(count):
            run()
        own_end, wall_end = clock(), time.perf_counter_ns()
        return own_end - own_start, wall_end - wall_start

    return sample


def statistics(values: Sequence[float]) -> Statistics:
    """Median, quartiles and extremes."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return {
        "median": float(median),
        "low": float(low),
        "high": float(high),
        "min": float(min(values)),
        "max": float(max(values)),
    }


@dataclass(frozen=True)
class Timing:
    """What one contender took, one value per round: the mean of a sample's repeats.

    Attributes:
        own_us: microseconds on the clock that contenders are compared by.
        wall_us: elapsed time, microseconds.
        repeats: runs in a sample.
        clock: whose time `own_us` is: `cpu`, or `device` for an accelerator's.
    """

    own_us: tuple[float, ...]
    wall_us: tuple[float, ...]
    repeats: int
    clock: str = "cpu"

    @property
    def median(self) -> float:
        """Median of `own_us`."""
        return float(np.median(self.own_us))

    def record(self) -> dict[str, Any]:
        """As it stands in a result file."""
        return {
            f"{self.clock}_us": statistics(self.own_us),
            "wall_us": statistics(self.wall_us),
            "rounds": len(self.own_us),
            "repeats": self.repeats,
        }

    def times_faster_than(self, other: "Timing", *, wall: bool = False) -> Statistics:
        """How many times faster this one is than the other, round by round."""
        mine, theirs = (self.wall_us, other.wall_us) if wall else (self.own_us, other.own_us)
        return statistics([b / a for a, b in zip(mine, theirs, strict=True)])


def remainder_ratio(whole: Timing, part: Timing, other: Timing) -> Statistics:
    """How many times faster the rest of a contender's work is than another contender that does the same.

    The rest is timed as a difference: `whole` minus `part`. Where it is small, the difference of a single round is
    mostly noise, so that medians over all rounds are subtracted. The spread is that of the ratio when rounds are
    resampled.

    Args:
        whole: does all of the work.
        part: does a part of it.
        other: does what the rest of `whole` does.

    Returns:
        The other's time over the rest's; 0 where the difference is not positive.
    """
    rows = np.array([whole.own_us, part.own_us, other.own_us])
    draws = np.random.default_rng(0).integers(0, rows.shape[1], (RESAMPLES, rows.shape[1]))
    medians = np.median(rows[:, draws], axis=2)
    rest = medians[0] - medians[1]
    ratios = np.where(rest > 0, medians[2] / np.maximum(rest, 1e-9), 0.0)
    rest_us = whole.median - part.median
    return statistics(ratios.tolist()) | {"median": other.median / rest_us if rest_us > 0 else 0.0}


def interleave(
    contenders: Mapping[str, Callable[[], Any]],
    *,
    threads: int = 1,
    seconds: float = 1.5,
    most_rounds: int = MOST_ROUNDS,
    sampler: Sampler | None = None,
    clock: str = "cpu",
) -> dict[str, Timing]:
    """Times contenders in turns, each first in some rounds.

    Args:
        contenders: what to run, by name.
        threads: threads that each uses; decides whose CPU time counts.
        seconds: about how long all rounds may last, three rounds at least.
        most_rounds: however short they are.
        sampler: another clock than the CPU's.
        clock: its name.

    Returns:
        Timing by name; round i of one ran beside round i of every other.
    """
    sample = sampler or cpu_sampler(threads)
    repeats = {}
    for name, run in contenders.items():
        for _ in range(2):  # first runs allocate, draw and cache; to those that take long that is nothing
            taken = sample(run, 1)[0]
            if taken > LONG_NS:
                break
        repeats[name] = math.ceil(SAMPLE_NS / max(taken, SAMPLE_NS / MOST_REPEATS))
    own: dict[str, list[float]] = {name: [] for name in contenders}
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    end = time.perf_counter() + seconds
    while len(own[names[0]]) < FEWEST_ROUNDS or (time.perf_counter() < end and len(own[names[0]]) < most_rounds):
        for name in names:
            own_ns, wall_ns = sample(contenders[name], repeats[name])
            own[name].append(own_ns / repeats[name] / 1000)
            wall[name].append(wall_ns / repeats[name] / 1000)
        names.append(names.pop(0))
    return {name: Timing(tuple(own[name]), tuple(wall[name]), repeats[name], clock) for name in contenders}
