"""Start-time fair queueing (Goyal, Vin and Cheng, 1996) among a few who share a lane: API keys, or classes."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)


class Shares(Generic[Who]):
    """Who comes next, by what each has received: the one with the lowest start.

    A start is a virtual time in seconds. It grows by the predicted seconds of what runs, divided by a weight. Whoever
    comes, or comes back, starts at the virtual time, which is the start of the one that last led a batch: nobody saves
    up while he has nothing to run, and nobody pays later for time that nobody else wanted.
    """

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self._starts: dict[Who, float] = {}

    def start(self, who: Who) -> float:
        """The start of someone who waits, or who would come now."""
        return max(self._virtual_s, self._starts.get(who, 0.0))

    def join(self, who: Who) -> None:
        """Someone has something to run; those who wait already keep their start."""
        self._starts[who] = self.start(who)

    def lead(self, who: Who) -> None:
        """Someone's row leads a batch."""
        self._virtual_s = self._starts[who]

    def charge(self, who: Who, seconds: float) -> None:
        """Someone's row runs: its predicted seconds, divided by his weight."""
        self._starts[who] += seconds

    def clear(self) -> None:
        """Nobody waits any more."""
        self._virtual_s = 0.0
        self._starts.clear()
