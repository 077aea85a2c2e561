"""How many predicted seconds of work each replica has before it, as one front knows it."""

import random
from collections.abc import Collection, Iterable, Mapping


class Outstanding:
    """Predicted seconds by replica: those that this front has sent, and those of other fronts as the replica said."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, float]] = {}  # replica, then request

    def send(self, replica: str, request: str, seconds: float) -> None:
        """Counts a request."""
        self._sent.setdefault(replica, {})[request] = seconds

    def end(self, replica: str, request: str) -> None:
        """Counts it no more; one that was never counted is no error."""
        of_replica = self._sent.get(replica, {})
        of_replica.pop(request, None)
        if not of_replica:
            self._sent.pop(replica, None)

    def seconds(self, replica: str, reported: Mapping[str, float], front: str) -> float:
        """Predicted seconds before a new request.

        Args:
            replica: its id.
            reported: by front, as the replica said last.
            front: this one, whose own count is newer than what the replica said.
        """
        others_s = sum(seconds for name, seconds in reported.items() if name != front)
        return sum(self._sent.get(replica, {}).values()) + others_s

    def keep(self, replicas: Collection[str]) -> None:
        """Forgets replicas that are gone."""
        for replica in self._sent.keys() - set(replicas):
            del self._sent[replica]


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
