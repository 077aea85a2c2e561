"""Token buckets: how much an API key may use in the long run, and how much at once after a pause."""

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """A token bucket, which may be overdrawn by its last use: the next ones wait until that is made up.

    Attributes:
        rate: what comes back per second.
        burst: the most that a pause saves up.
        spare: what may be used at once.
        counted_s: clock at which `spare` was counted.
    """

    rate: float
    burst: float
    spare: float
    counted_s: float

    def wait_s(self, least: float, now_s: float) -> float:
        """Seconds until there is at least so much to use; 0 where there is.

        Args:
            least: of the units that are counted, at most `burst`.
            now_s: a clock that never goes back.
        """
        self.spare = min(self.burst, self.spare + (now_s - self.counted_s) * self.rate)
        self.counted_s = now_s
        return max(0.0, (least - self.spare) / self.rate)

    def use(self, amount: float) -> None:
        """Counts a use."""
        self.spare -= amount

    def continued(self, before: "Bucket | None") -> "Bucket":
        """This bucket, with the count of one of the same limits that was there before it."""
        if before is not None and (before.rate, before.burst) == (self.rate, self.burst):
            self.spare, self.counted_s = before.spare, before.counted_s
        return self
