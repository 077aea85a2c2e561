"""Predicted seconds of work that each replica has before it, as one front knows them."""

import functools
import random
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

DIGITS = 6  # of seconds that differ; less is what sums of fractions leave


class Outstanding:
    """Predicted seconds by replica of the calls that a front has sent; the front ends each, the router sends it.

    Ray Serve runs the two in threads of their own. Its own notices of completed requests would not do: they may come
    before that of the sending, and none comes of a request that is cancelled on its way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, float]] = {}
        self._totals: dict[str, float] = defaultdict(float)

    def begin(self, call: int, seconds: float) -> None:
        """Counts a call, of no replica yet."""
        with self._lock:
            self._calls[call] = ("", seconds)

    def send(self, call: int, replica: str) -> None:
        """Counts a call for a replica, in place of the one before; nothing where it has ended."""
        with self._lock:
            if call in self._calls:
                before, seconds = self._calls[call]
                self._totals[before] -= seconds
                self._totals[replica] += seconds
                self._calls[call] = (replica, seconds)

    def end(self, call: int) -> None:
        """Counts a call no more."""
        with self._lock:
            replica, seconds = self._calls.pop(call)
            self._totals[replica] -= seconds
            if not self._calls:
                self._totals.clear()

    def seconds(self, replica: str, reported: Mapping[str, float], front: str) -> float:
        """Predicted seconds before a new call.

        Args:
            replica: its id.
            reported: by front, as the replica said last.
            front: this one, whose own count is newer than what the replica said.
        """
        others_s = sum(seconds for name, seconds in reported.items() if name != front)
        with self._lock:
            return round(self._totals.get(replica, 0.0) + others_s, DIGITS)


def by_work(
    replicas: Iterable[tuple[str, Mapping[str, float]]], outstanding: Outstanding, front: str, avoid: Collection[str]
) -> list[str]:
    """Replicas in the order in which a request should try them.

    Args:
        replicas: id, and what it reported.
        outstanding: of this front.
        front: its id.
        avoid: replicas that failed to answer the request: they come last, for they may be all that there is.

    Returns:
        Ids, the one with the least work before it first; chance orders equal ones.
    """
    keys = {
        replica: (replica in avoid, outstanding.seconds(replica, reported, front), random.random())
        for replica, reported in replicas
    }
    return sorted(keys, key=lambda replica: keys[replica])


@functools.cache
def of_this_process() -> Outstanding:
    """Of the front in this process; a global would be copied with the router, which Ray Serve passes on by value."""
    return Outstanding()
