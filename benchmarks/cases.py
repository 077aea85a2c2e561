"""What is common to all cases: a case prepares its contenders, checks them, is timed, and becomes a row."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from timing import Timing, interleave

# Shape of BERT-base's attention, and YOSO's hash bits.
HEADS, HEAD_DIM, HASH_BITS = 12, 64, 8
CHANNELS = HEADS * HEAD_DIM
# Difference to NumPy, relative to the largest value, beyond which nothing is timed.
TOLERANCE = 1e-4

Runs = dict[str, Callable[[], Any]]
Row = dict[str, Any]


class Case(NamedTuple):
    """Something to time.

    Attributes:
        section: of the result file.
        facts: what tells it from the others of its section.
        prepare: makes the contenders, checks them, and says how far each was from the truth.
        ours: contenders whose speed-up over the fastest of `exact` counts.
        exact: baselines.
        threads: intra-op threads of every contender.
    """

    section: str
    facts: Row
    prepare: Callable[[], tuple[Runs, dict[str, float]]]
    ours: tuple[str, ...]
    exact: tuple[str, ...]
    threads: int = 1

    def run(self, seconds: float) -> Row:
        """Checks and times the contenders.

        Args:
            seconds: see `timing.interleave`.

        Returns:
            A row of a result file: the facts, each contender's times, errors, and speed-ups over the fastest baseline.
        """
        runs, errors = self.prepare()
        timings = interleave(runs, threads=self.threads, seconds=seconds)
        best = min(self.exact, key=lambda name: float(np.median(timings[name].cpu_us)))
        return {
            **self.facts,
            "threads": self.threads,
            "contenders": records(timings),
            "errors": errors,
            "best_exact": best,
            "speed_up": {name: timings[name].times_faster_than(timings[best]) for name in self.ours},
        }


def records(timings: Mapping[str, Timing]) -> Row:
    """Timings as they stand in a result file."""
    return {name: timing.record() for name, timing in timings.items()}


def checked(name: str, error: float, tolerance: float = TOLERANCE) -> float:
    """The error, where it is tolerable.

    Raises:
        SystemExit: the contender computes something else.
    """
    if not error <= tolerance:
        raise SystemExit(
            f"benchmarks: {name} differs from the reference by {error:.2g}, at most {tolerance:g} is right"
        )
    return error
