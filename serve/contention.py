"""How much the lanes slow each other down: the runs of both use all cores.

A batch that runs beside one of the other lane takes `factor` times as long for that time. The factor begins at the
ratio of the threads of both runs to the cores, and then follows the batches that ran beside another: their time, less
what sharing is thought to cost, is compared with the prediction. What is left over is what the latency model learns.

How long a lane will be busy is what waits there now, and beyond that, as more will come, the share of the last seconds
in which it was busy.
"""

import math

from attenuator.serve.jobs import LANES, Lane

MOST = 4.0
RATE = 0.05
MAX_STEP = math.log(4)  # of one batch's error
MEMORY_S = 5.0


class BusyTime:
    """When a lane is busy."""

    def __init__(self) -> None:
        self._busy = False
        self._total_s = 0.0
        self._share = 0.0
        self._changed_s = 0.0

    def change(self, now_s: float, *, busy: bool) -> None:
        """The lane begins or ends a batch."""
        self._total_s, self._share = self.total_s(now_s), self.share(now_s)
        self._busy, self._changed_s = busy, now_s

    def total_s(self, now_s: float) -> float:
        """Seconds in which it has been busy."""
        return self._total_s + (now_s - self._changed_s if self._busy else 0.0)

    def share(self, now_s: float) -> float:
        """Share of the last seconds in which it was busy; the older, the less they count."""
        fading = math.exp((self._changed_s - now_s) / MEMORY_S)
        return self._share * fading + (1 - fading if self._busy else 0.0)


class Contention:
    """What lanes cost each other.

    Attributes:
        factor: by which a batch is slower while the other lane runs one.
    """

    def __init__(self, threads: int, cores: int) -> None:
        """Starts with what the numbers suggest.

        Args:
            threads: inside one run.
            cores: that the process may use.
        """
        self.factor = min(2.0, max(1.0, 2 * threads / cores))
        self._busy = {lane: BusyTime() for lane in LANES}

    def begin(self, lane: Lane, now_s: float) -> float:
        """A lane begins a batch; gives a mark for `beside_s`."""
        self._busy[lane].change(now_s, busy=True)
        return self._busy[_other(lane)].total_s(now_s)

    def end(self, lane: Lane, now_s: float) -> None:
        """A lane ends its batch."""
        self._busy[lane].change(now_s, busy=False)

    def beside_s(self, lane: Lane, mark: float, now_s: float) -> float:
        """Seconds since a lane's batch began in which the other lane ran one."""
        return self._busy[_other(lane)].total_s(now_s) - mark

    def alone_s(self, seconds: float, beside_s: float) -> float:
        """What a time would have been without the other lane."""
        return seconds - beside_s * (1 - 1 / self.factor)

    def shared_s(self, lane: Lane, seconds: float, other_s: float, now_s: float) -> float:
        """What work takes beside that of the other lane.

        Args:
            lane: where it runs.
            seconds: it takes without the other.
            other_s: that waits and runs there now, likewise.
            now_s: the clock.
        """
        later_s = self._busy[_other(lane)].share(now_s) * max(0.0, seconds - other_s)
        return seconds + (self.factor - 1) * min(seconds, other_s + later_s)

    def learn(self, seconds: float, beside_s: float, predicted_s: float) -> None:
        """Learns from a batch.

        Args:
            seconds: that it took, above 0.
            beside_s: of them beside one of the other lane.
            predicted_s: without the other lane, above 0.
        """
        error = math.log(max(self.alone_s(seconds, beside_s), 1e-6) / predicted_s)
        step = RATE * min(1.0, beside_s / seconds) * min(max(error, -MAX_STEP), MAX_STEP)
        self.factor = min(max(self.factor * math.exp(step), 1.0), MOST)


def _other(lane: Lane) -> Lane:
    return "heavy" if lane == "light" else "light"
