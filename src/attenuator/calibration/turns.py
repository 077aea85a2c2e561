"""Times of calls that are taken in turns, and how many times as fast each is as the first.

What else a machine does makes a call slower, for one turn or for many. The calls of a turn share it, so a ratio is the
median of the ratios of single turns, with an interval; seconds are the first call's shortest time over that ratio. One
thread is timed by its own CPU time, which does not run while others have the core.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

MIN_ROUNDS = 3
MAX_ROUNDS = 100_000
STEADY = 1.1  # the upper end of an interval over the lower one: turns go on until all ratios are that close,
PATIENCE = 4  # or have taken so many times the budget
WIDE = 1.25  # beyond it a ratio says nothing
FASTER = 1.05  # times as fast, at least: less is not worth another answer
Z = 1.96  # of a 95 % interval
MODEL_ERROR = 1.5  # times as much as is modelled: a clock that finds more was disturbed


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one call takes.

    Attributes:
        seconds: of one call.
        gain: how many times as fast as the first call.
        low: lower end of a 95 % interval of that; of few turns, the least.
        high: its upper end.
    """

    seconds: float
    gain: float
    low: float
    high: float

    def credible(self, most: float = math.inf, than: float = 1.0) -> bool:
        """Whether the turns agree, and do not find more than can be.

        Args:
            most: how many times as fast as another call it can be, as modelled.
            than: that call's own `gain`.
        """
        return self.high <= WIDE * self.low and self.low <= MODEL_ERROR * most * than

    @property
    def wins(self) -> bool:
        """Whether it is surely worth having instead of the first call."""
        return self.credible() and self.low >= FASTER


def in_turns(
    runs: Sequence[Callable[[], object]], budget_s: float, *, threads: int | None = None, max_rounds: int = MAX_ROUNDS
) -> list[Timing]:
    """Times calls in turns.

    Args:
        runs: the calls; the first turn only warms up.
        budget_s: seconds to spend, though at least `MIN_ROUNDS` turns are timed, and where the turns do not agree
            `PATIENCE` times as many seconds.
        threads: that a call computes with; 1 if it does so in the thread that calls it, on the CPU.
        max_rounds: turns that are timed at most.

    Returns:
        One for each call.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    turns: list[list[float]] = []
    begun = time.perf_counter()
    for turn in range(max_rounds + 1):
        taken = []
        for run in runs:
            started = clock()
            run()
            taken.append(max(clock() - started, 1e-9))
        turns += [taken] if turn else []
        spent = time.perf_counter() - begun
        if turn >= MIN_ROUNDS and spent > budget_s:
            timings = _timings(turns)
            if spent > PATIENCE * budget_s or all(each.high <= STEADY * each.low for each in timings):
                return timings
    return _timings(turns)


def _timings(turns: Sequence[Sequence[float]]) -> list[Timing]:
    """From seconds `[turns][calls]`."""
    seconds = np.asarray(turns)
    ratios = np.sort(seconds[:, :1] / seconds, axis=0)
    last = len(ratios) - 1
    place = max(0, math.floor((len(ratios) - Z * math.sqrt(len(ratios))) / 2))
    gains = np.median(ratios, axis=0)
    return [
        Timing(float(seconds[:, 0].min() / gain), float(gain), float(low), float(high))
        for gain, low, high in zip(gains, ratios[place], ratios[last - place], strict=True)
    ]
