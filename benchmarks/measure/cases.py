"""What is common to all cases: a case prepares its contenders, checks them, is timed, and becomes a row."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.measure.timing import Timing, interleave

# Shape of BERT-base's attention, and YOSO's hash bits.
HEADS, HEAD_DIM, HASH_BITS = 12, 64, 8
CHANNELS = HEADS * HEAD_DIM
# Difference to NumPy, relative to the largest value, beyond which nothing is timed.
TOLERANCE = 1e-4

Runs = dict[str, Callable[[], Any]]
Row = dict[str, Any]


class Inaccurate(SystemExit):
    """A contender computes something else than the reference; ends a program that does not go on with others."""


class Case(NamedTuple):
    """Something to time.

    Attributes:
        section: of the result file.
        facts: what tells it from the others of its section.
        prepare: makes the contenders, checks them, and says how far each was from the truth.
        ours: contenders whose speed-up over the fastest of `exact` counts.
        exact: baselines.
        threads: intra-op threads of every contender.
        expected: seconds that all this takes beyond the rounds' budget, roughly: for the progress bar.
    """

    section: str
    facts: Row
    prepare: Callable[[], tuple[Runs, dict[str, float]]]
    ours: tuple[str, ...]
    exact: tuple[str, ...]
    threads: int = 1
    expected: float = 1.0

    def run(self, seconds: float) -> Row:
        """Checks and times the contenders.

        Args:
            seconds: see `timing.interleave`.

        Returns:
            A row of a result file: the facts, each contender's times, errors, and speed-ups over the fastest baseline
            in CPU time and in elapsed time.
        """
        runs, errors = self.prepare()
        timings = interleave(runs, threads=self.threads, seconds=seconds)
        best = fastest(timings, self.exact)
        return {
            **self.facts,
            "threads": self.threads,
            "contenders": records(timings),
            "errors": errors,
            "best_exact": best,
            "speed_up": {name: timings[name].times_faster_than(timings[best]) for name in self.ours},
            "speed_up_wall": {name: timings[name].times_faster_than(timings[best], wall=True) for name in self.ours},
        }


def fastest(timings: Mapping[str, Timing], names: tuple[str, ...]) -> str:
    """Which of these took least time in the median."""
    return min(names, key=lambda name: timings[name].median)


def records(timings: Mapping[str, Timing]) -> Row:
    """Timings as they stand in a result file."""
    return {name: timing.record() for name, timing in timings.items()}


def checked(name: str, error: float, tolerance: float = TOLERANCE) -> float:
    """The error, where it is tolerable.

    Raises:
        Inaccurate: the contender computes something else.
    """
    if not error <= tolerance:
        raise Inaccurate(
            f"benchmarks: {name} differs from the reference by {error:.2g}, at most {tolerance:g} is right"
        )
    return error
