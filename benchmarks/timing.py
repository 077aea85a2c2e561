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

Clock = Callable[[], int]
Statistics = dict[str, float]


def clock_for(threads: int) -> Clock:
    """CPU time of what runs: of the calling thread where it does all the work, else of the process."""
    return time.thread_time_ns if threads == 1 else time.process_time_ns


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
    """What one contender took, one value a round: the mean of a sample's repeats.

    Attributes:
        cpu_us: CPU time, microseconds.
        wall_us: elapsed time, microseconds.
        repeats: runs in a sample.
    """

    cpu_us: tuple[float, ...]
    wall_us: tuple[float, ...]
    repeats: int

    def record(self) -> dict[str, Any]:
        """As it stands in a result file."""
        return {
            "cpu_us": statistics(self.cpu_us),
            "wall_us": statistics(self.wall_us),
            "rounds": len(self.cpu_us),
            "repeats": self.repeats,
        }

    def beyond(self, part: "Timing") -> "Timing":
        """What is left of this one without the other, round by round."""
        cpu = zip(self.cpu_us, part.cpu_us, strict=True)
        wall = zip(self.wall_us, part.wall_us, strict=True)
        return Timing(tuple(a - b for a, b in cpu), tuple(a - b for a, b in wall), self.repeats)

    def times_faster_than(self, other: "Timing") -> Statistics:
        """How many times the other's CPU time this one's goes into, round by round."""
        return statistics([theirs / mine for theirs, mine in zip(other.cpu_us, self.cpu_us, strict=True)])


def interleave(
    contenders: Mapping[str, Callable[[], Any]], *, threads: int = 1, seconds: float = 1.5
) -> dict[str, Timing]:
    """Times contenders in turns, each first in some rounds.

    Args:
        contenders: what to run, by name.
        threads: threads that each uses; decides whose CPU time counts.
        seconds: about how long all rounds may last, three rounds at least.

    Returns:
        Timing by name; round i of one ran beside round i of every other.
    """
    clock = clock_for(threads)
    repeats = {}
    for name, run in contenders.items():
        for _ in range(2):  # first runs allocate, draw and cache; to those that take long that is nothing
            start = clock()
            run()
            taken = clock() - start
            if taken > LONG_NS:
                break
        repeats[name] = math.ceil(SAMPLE_NS / max(taken, SAMPLE_NS / MOST_REPEATS))
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    end = time.perf_counter() + seconds
    while len(cpu[names[0]]) < FEWEST_ROUNDS or (time.perf_counter() < end and len(cpu[names[0]]) < MOST_ROUNDS):
        for name in names:
            run, count = contenders[name], repeats[name]
            wall_start, cpu_start = time.perf_counter_ns(), clock()
            for _ in range(count):
                run()
            cpu_end, wall_end = clock(), time.perf_counter_ns()
            cpu[name].append((cpu_end - cpu_start) / count / 1000)
            wall[name].append((wall_end - wall_start) / count / 1000)
        names.append(names.pop(0))
    return {name: Timing(tuple(cpu[name]), tuple(wall[name]), repeats[name]) for name in contenders}
