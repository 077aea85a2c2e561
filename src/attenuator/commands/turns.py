"""Times calls in turns, so that a change of the machine's speed meets all of them."""

import math
import time
from collections.abc import Callable, Sequence

MIN_ROUNDS = 3
MAX_ROUNDS = 100_000


def shortest_s(runs: Sequence[Callable[[], object]], budget_s: float, *, max_rounds: int = MAX_ROUNDS) -> list[float]:
    """Shortest time of each call: what else the machine does only adds to a time.

    Args:
        runs: the calls; the first turn only warms up.
        budget_s: seconds to spend, though at least `MIN_ROUNDS` turns are timed.
        max_rounds: turns that are timed at most.

    Returns:
        Seconds, one for each call.
    """
    best = [math.inf for _ in runs]
    end = time.perf_counter() + budget_s
    for turn in range(max_rounds + 1):
        for place, run in enumerate(runs):
            started = time.perf_counter()
            run()
            elapsed = time.perf_counter() - started
            best[place] = min(best[place], elapsed) if turn else math.inf
        if turn >= MIN_ROUNDS and time.perf_counter() > end:
            break
    return best
