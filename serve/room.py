"""How much may be there at a time, of all requests and of one API key's, and the refusals where it is more.

Of several keys each may have at most as many tokens waiting, and as many requests in progress, as then stay free. So
one that floods takes half, two take a third each, and whoever comes finds room.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from attenuator.errors import Overloaded
from attenuator.serve.jobs import LANES, Lane
from attenuator.serve.scheduler import Queue

FREE_QUEUE_SHARE = 0.5


class Room:
    """The room for requests and their tokens; the name of a key is empty where there are not several.

    Attributes:
        requests: in progress.
    """

    def __init__(
        self, queue: Queue, max_requests: int, max_queue_tokens: int, remaining_s: Callable[[Lane], float]
    ) -> None:
        """Starts empty.

        Args:
            queue: where tokens wait.
            max_requests: in progress.
            max_queue_tokens: in a lane.
            remaining_s: predicted time of what runs and waits in a lane.
        """
        self.requests = 0
        self._requests_of = Counter[str]()
        self._queue = queue
        self._max_requests = max_requests
        self._max_queue_tokens = max_queue_tokens
        self._remaining_s = remaining_s

    def enter(self, key: str) -> None:
        """Counts a request as in progress."""
        self.requests += 1
        self._requests_of[key] += 1

    def leave(self, key: str) -> None:
        """Counts it no more."""
        self.requests -= 1
        self._requests_of[key] -= 1

    def check_requests(self, key: str) -> None:
        """Refuses a request where too many are in progress.

        Raises:
            Overloaded: as described.
        """
        if self.requests >= self._max_requests:
            raise self._overloaded(f"{self.requests} requests are in progress", "light")
        own = self._requests_of[key] if key else 0
        if own and own >= self._max_requests - self.requests:
            raise self._overloaded(f"{own} requests of the API key '{key}' are in progress", "light")

    def full(self, demand: Mapping[Lane, int], key: str) -> Lane | None:
        """The first lane without room for so many tokens, or None."""
        return self._queue.full(demand, self._max_queue_tokens, key)

    def check_tokens(self, demand: Mapping[Lane, int], key: str) -> None:
        """Refuses tokens for which a lane's queue has no room.

        Raises:
            Overloaded: too many are waiting.
        """
        lane = self.full(demand, key)
        if lane:
            own = self._queue.lanes[lane].load_of(key).tokens if key else 0
            among = f", {own} of the API key '{key}' among them" if own else ""
            raise self._overloaded(f"{self._queue.lanes[lane].load.tokens} tokens are waiting{among}", lane)

    def fullness(self, key: str) -> float:
        """What waits or is in progress, one request aside, as a share of its limit: of a key, or of all."""
        requests, most = self.requests - 1, self._max_requests
        if key:
            own = max(0, self._requests_of[key] - 1)
            requests, most = 2 * own, most - (requests - own)
        waiting = (self._queue.fullness(lane, key, self._max_queue_tokens) for lane in LANES)
        return max(requests / most, *waiting)

    def _overloaded(self, what: str, lane: Lane) -> Overloaded:
        # After this time part of the queue is done, and a new request finds room.
        wait_s = max(1.0, self._remaining_s(lane) * FREE_QUEUE_SHARE)
        return Overloaded(f"the service is overloaded: {what}; try again in {wait_s:.0f} s", retry_after_s=wait_s)
