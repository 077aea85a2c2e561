"""Fair order: which row of a lane comes next. Plain data.

*Priorities and keys.* The classes share a lane's running time, and in each class its API keys do, by start-time fair
queueing (`Shares`; Goyal, Vin and Cheng, 1996) of predicted seconds. While both classes wait, `batch` gets
`BATCH_CLASS_SHARE` of the time, the rest is `interactive`'s. While several keys of a class wait, each gets its weight's
share of the class's time. A key of which nothing waits takes nothing, and comes next when it comes. Without keys all
requests are of one.

*Requests of a key and class.* The same queueing, in which each request is a flow. Every row has a start, in virtual
seconds. A request's first row starts at the queue's virtual time on arrival; each further row starts when the
one before it would end, by predicted seconds. The virtual time is the start of the row that last led a batch.
The row with the lowest start runs first. Rows with equal starts run by size class (powers of four of their predicted
seconds), then by arrival. So a short request runs next, however many rows others have queued, and large requests take
turns. A row whose knobs were lowered keeps the size class of what was asked for: it is cheaper, but does not overtake.

*The oldest request.* New requests could hold a large one back for ever. So `OLDEST_SHARE` of the running time of a
key and class is owed to its request that has waited longest: when that has got less, its next row leads a batch. A
request that first-come, first-served among its key's and class's would finish after w seconds of their running time is
thus finished after (w + one row) / OLDEST_SHARE seconds of it. Of n keys with equal weights each gets at least 1 / n of
its class's time, and `batch` at least `BATCH_CLASS_SHARE` of all: nothing starves.
"""

import heapq
import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attenuator.runtime import Model
from attenuator.serve.scheduling.requests import Backlog, Entry, Job, tokens_counted

OLDEST_SHARE = 0.25
ROUNDING_S = 1e-9  # sums of the same seconds in another order still tie

Who = TypeVar("Who", bound=Hashable)


class Shares(Generic[Who]):
    """Who comes next of API keys or classes, by what each has received: the one with the lowest start.

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


def size_class(seconds: float) -> int:
    """The size class of a row, from its predicted seconds."""
    return math.floor(math.log(seconds, 4))


@dataclass(slots=True, eq=False)
class Waiting:
    """What waits of one request in one lane.

    Attributes:
        job: the request.
        rows: index and predicted seconds of each row, in order.
        number: its place in order of arrival.
        start: virtual start of its first row.
        tokens: that its rows count.
    """

    job: Job
    rows: deque[tuple[int, float]]
    number: int
    start: float
    tokens: int = 0

    def first(self) -> Entry:
        """Its first row."""
        index, seconds = self.rows[0]
        return Entry(self.job, index, len(self.job.rows[index].token_ids), seconds)

    def size(self, seconds: float) -> int:
        """The size class of one of its rows, as it was asked for."""
        return size_class(seconds / self.job.room_share)


Place = tuple[float, int, int, Waiting]  # start, size class and number of a request's first row: its fair order


class FlowQueue:
    """Rows of one API key and class that wait in one lane.

    A heap holds the requests of each model by their first rows. A place that is out of date, since its row was taken
    out of turn or its request has ended, comes before the right one; it is mended when it reaches the top.

    Attributes:
        backlog: what waits.
        weight: of its share.
    """

    def __init__(self, max_request_room: int, lane: Backlog) -> None:
        """Starts empty; counts in the lane's backlog too, where one request takes `max_request_room` tokens at most."""
        self.backlog = Backlog()
        self.weight = 1.0
        self._lane = lane
        self._max_request_room = max_request_room
        self._virtual_s = 0.0
        self._owed_s = 0.0
        self._heaps: dict[Model, list[Place]] = {}
        self._by_job: dict[Job, Waiting] = {}  # by arrival

    def push(self, job: Job, rows: Sequence[tuple[int, float]], number: int) -> None:
        """Adds rows of a request, at least one: index and predicted seconds, and its place in order of arrival."""
        waiting = self._by_job[job] = Waiting(job, deque(rows), number, self._virtual_s)
        tokens = seconds = 0.0
        for index, each in rows:
            tokens += tokens_counted(len(job.rows[index].token_ids), job.room_share)
            seconds += each
        self._count(waiting, int(tokens), seconds)
        heapq.heappush(self._heaps.setdefault(job.model, []), self._place(waiting))

    def drop(self, job: Job) -> None:
        """Removes a request's waiting rows."""
        waiting = self._by_job.pop(job, None)
        if waiting is not None:
            self._count(waiting, -waiting.tokens, -sum(seconds for _, seconds in waiting.rows))
            waiting.rows.clear()

    def oldest(self) -> Job | None:
        """The request that has waited longest; removes requests that have ended meanwhile."""
        while self._by_job:
            job = next(iter(self._by_job))
            if not job.over:
                return job
            self.drop(job)
        return None

    def head(self, model: Model | None = None) -> Place | None:
        """The first row in fair order, of one model where one is named."""
        if model is None:
            return min((first for each in list(self._heaps) if (first := self.head(each))), default=None)
        heap = self._heaps.get(model)
        while heap:
            start, _, _, waiting = heap[0]
            if not waiting.rows or waiting.job.over:
                heapq.heappop(heap)
            elif start < waiting.start:
                heapq.heapreplace(heap, self._place(waiting))
            else:
                return heap[0]
        self._heaps.pop(model, None)
        return None

    def lead(self) -> Waiting:
        """The request whose first row leads the flow's next batch: the first in fair order, or an oldest that is owed.

        At least one row must wait.
        """
        oldest, first = self.oldest(), self.head()
        assert oldest is not None
        assert first is not None
        owed = self._by_job[oldest]
        if self._owed_s >= owed.rows[0][1]:
            return owed
        self._virtual_s = first[0]
        return first[3]

    def take(self, waiting: Waiting, entry: Entry) -> None:
        """Takes a request's first row, as `Waiting.first` gives it."""
        waiting.rows.popleft()
        waiting.start += entry.seconds
        self._count(waiting, -tokens_counted(entry.tokens, entry.job.room_share), -entry.seconds)
        if not waiting.rows:
            del self._by_job[entry.job]

    def settle(self, oldest: Job | None, taken: Sequence[Entry]) -> None:
        """Counts what is owed to `oldest`, which had waited longest before the flow's rows were `taken` for a batch."""
        seconds = sum(entry.seconds for entry in taken)
        received = sum(entry.seconds for entry in taken if entry.job is oldest)
        self._owed_s = max(0.0, self._owed_s + OLDEST_SHARE * seconds - received)

    def waiting(self) -> Iterator[Entry]:
        """The rows that wait, those of requests that have ended meanwhile aside."""
        for job, waiting in self._by_job.items():
            if not job.over:
                for index, seconds in waiting.rows:
                    yield Entry(job, index, len(job.rows[index].token_ids), seconds)

    def wait_s(self) -> float:
        """Predicted seconds of the flow's rows that run before one that arrives now."""
        return self._before_s(self._virtual_s, math.inf)

    def ahead_s(self, own_s: float, last_s: float) -> float:
        """As `wait_s`, until a request is done whose rows take `own_s` and the last of them `last_s`."""
        ahead_s = self._before_s(self._virtual_s + (own_s - last_s), size_class(last_s))
        owed_s = (ahead_s + own_s) * OLDEST_SHARE / (1 - OLDEST_SHARE)
        return ahead_s + min(max(0.0, self.backlog.seconds - ahead_s), owed_s)

    def waited_s(self, now_s: float) -> float:
        """How long the oldest request has waited of which no row has begun."""
        return next((now_s - job.submitted_s for job in self._by_job if job.started_s is None and not job.over), 0.0)

    def _before_s(self, start: float, size: float) -> float:
        """Predicted seconds of the waiting rows that come before one of this start and size class, or with it."""
        before_s = 0.0
        for job, waiting in self._by_job.items():
            if not job.over:
                own_start = waiting.start
                for _, seconds in waiting.rows:
                    ties = abs(own_start - start) <= ROUNDING_S
                    if (waiting.size(seconds) > size) if ties else (own_start > start):
                        break
                    before_s += seconds
                    own_start += seconds
        return before_s

    @staticmethod
    def _place(waiting: Waiting) -> Place:
        return waiting.start, waiting.size(waiting.rows[0][1]), waiting.number, waiting

    def _count(self, waiting: Waiting, tokens: int, seconds: float) -> None:
        before, most = waiting.tokens, self._max_request_room
        waiting.tokens = before + tokens
        room = min(waiting.tokens, most) - min(before, most)
        self.backlog.add(tokens, seconds, room)
        self._lane.add(tokens, seconds, room)
