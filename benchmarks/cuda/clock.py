"""Device time of runs, with no gap in which the device waited for the host.

A kernel that only waits goes in front, so that the host has queued a group of runs before the first begins. Whether
that held is checked: where the waiting kernel had ended before the last run of the group was queued, the group's time
is thrown away and taken again behind a longer wait, then in smaller groups.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

# What the host may take to queue one run, generously; and the most that a group waits for it.
QUEUE_S, MOST_WAIT_S = 100e-6, 0.05
MOST_RUNS = 256  # a group; the device's own queue holds about a thousand launches, and a run has several


class GroupClock(Protocol):
    """Takes the device time of one group of runs."""

    def begin(self, wait_s: float) -> None:
        """Queues the kernel that waits, then the start of the measured time."""

    def finish(self) -> bool:
        """Queues the end, waits for it, and tells whether the device started only after everything was queued."""

    def elapsed_ns(self) -> float:
        """Device time between start and end."""


class CudaGroupClock:
    """Takes time by CUDA events on one stream."""

    def __init__(self, stream: Any, clock_hz: float) -> None:
        self._stream, self._clock_hz = stream, clock_hz
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def begin(self, wait_s: float) -> None:
        """See `GroupClock`."""
        torch.cuda._sleep(int(wait_s * self._clock_hz))
        self._start.record(self._stream)

    def finish(self) -> bool:
        """See `GroupClock`."""
        started_early = self._start.query()
        self._end.record(self._stream)
        self._stream.synchronize()
        return not started_early

    def elapsed_ns(self) -> float:
        """See `GroupClock`."""
        return float(self._start.elapsed_time(self._end)) * 1e6


def device_time_ns(clock: GroupClock, run: Callable[[], Any], count: int) -> float:
    """Device time of a number of runs, each queued before the device reached it.

    Args:
        clock: of the device.
        run: queues the work of one run and does not wait for it.
        count: runs.

    Returns:
        Their time in ns, waits not included.

    Raises:
        RuntimeError: even a single run is not queued within the longest wait: its time would hold the host's.
    """
    total_ns, remaining, largest, wait_s = 0.0, count, MOST_RUNS, 0.0
    while remaining:
        size = min(largest, remaining)
        wait_s = max(wait_s, min(size * QUEUE_S, MOST_WAIT_S))
        clock.begin(wait_s)
        for _ in range(size):
            run()
        if clock.finish():
            total_ns += clock.elapsed_ns()
            remaining -= size
        elif wait_s < MOST_WAIT_S:
            wait_s = min(2 * wait_s, MOST_WAIT_S)
        elif size > 1:
            largest = size // 2
        else:
            raise RuntimeError(
                f"the host takes over {MOST_WAIT_S * 1000:g} ms to queue one run: it waits for the device"
            )
    return total_ns
