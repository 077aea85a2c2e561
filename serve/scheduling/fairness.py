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
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from attenuator.runtime import Model
from attenuator.serve.scheduling.requests import Entry, Job, Load, tokens_counted

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


class FlowQueue:
    """Rows of one API key and class that wait in one lane.

    Attributes:
        load: what waits.
        weight: of its share.
    """

    def __init__(self, max_request_room: int) -> None:
        """Starts empty; one request may take so much room, in tokens."""
        self.load = Load()
        self._max_request_room = max_request_room
        self._tokens = Counter[Job]()  # that wait of each request
        self.weight = 1.0
        self._virtual_s = 0.0
        self._owed_s = 0.0
        self._heaps: dict[Model, list[Entry]] = {}  # by model; entries already taken or dropped are skipped later
        self._by_job: dict[Job, deque[Entry]] = {}  # jobs by arrival, rows in order

    def push(self, job: Job, rows: Sequence[tuple[int, float]], number: int) -> None:
        """Adds rows of a request.

        Args:
            job: the request.
            rows: index and predicted seconds of those that belong to this lane, at least one.
            number: arrival order of the first row; the others follow by one each.
        """
        heap, entries, start = self._heaps.setdefault(job.model, []), deque[Entry](), self._virtual_s
        for offset, (index, seconds) in enumerate(rows):
            size = size_class(seconds / job.room_share)
            tokens = len(job.rows[index].token_ids)
            entry = Entry(
                start, size, number + offset, job, index, tokens, seconds, tokens_counted(tokens, job.room_share)
            )
            start += seconds  # where this one would end
            heapq.heappush(heap, entry)
            self._count(entry, 1)
            entries.append(entry)
        self._by_job[job] = entries

    def drop(self, job: Job) -> None:
        """Removes a request's waiting rows."""
        for entry in self._by_job.pop(job, ()):
            entry.taken = True
            self._count(entry, -1)

    def oldest(self) -> Job | None:
        """The request that has waited longest; removes requests that have ended meanwhile."""
        while self._by_job:
            job = next(iter(self._by_job))
            if not job.over:
                return job
            self.drop(job)
        return None

    def head(self, model: Model | None = None) -> Entry | None:
        """The first row in fair order, of one model where one is named."""
        models = list(self._heaps) if model is None else [model]
        return min((heap[0] for each in models if (heap := self._waiting_heap(each))), default=None)

    def lead(self) -> Entry:
        """The row that leads the flow's next batch: the first in fair order, or that of an oldest request that is owed.

        At least one row must wait.
        """
        oldest, first = self.oldest(), self.head()
        assert oldest is not None
        assert first is not None
        owed = self._by_job[oldest][0]
        if self._owed_s >= owed.seconds:
            return owed
        self._virtual_s = first.start
        return first

    def remove(self, entry: Entry) -> None:
        """Takes a row, which must be the first one waiting of its request."""
        entries = self._by_job[entry.job]
        entries.popleft()
        if not entries:
            del self._by_job[entry.job]
        entry.taken = True
        self._count(entry, -1)

    def settle(self, oldest: Job | None, taken: Sequence[Entry]) -> None:
        """Counts what the flow's oldest request is owed.

        Args:
            oldest: the request that had waited longest before a batch was formed.
            taken: the flow's rows in that batch.
        """
        seconds = sum(entry.seconds for entry in taken)
        received = sum(entry.seconds for entry in taken if entry.job is oldest)
        self._owed_s = max(0.0, self._owed_s + OLDEST_SHARE * seconds - received)

    def waiting(self) -> Iterator[Entry]:
        """The rows that wait, those of requests that have ended meanwhile aside."""
        for job, entries in self._by_job.items():
            if not job.over:
                yield from entries

    def wait_s(self) -> float:
        """Predicted seconds of the flow's rows that run before one that arrives now."""
        return self._before_s(self._virtual_s, math.inf)

    def ahead_s(self, own_s: float, last_s: float) -> float:
        """As `wait_s`, until a request is done whose rows take `own_s` and the last of them `last_s`."""
        ahead_s = self._before_s(self._virtual_s + (own_s - last_s), size_class(last_s))
        owed_s = (ahead_s + own_s) * OLDEST_SHARE / (1 - OLDEST_SHARE)
        return ahead_s + min(max(0.0, self.load.seconds - ahead_s), owed_s)

    def waited_s(self, now_s: float) -> float:
        """How long the oldest request has waited of which no row has begun."""
        return next((now_s - job.submitted_s for job in self._by_job if job.started_s is None and not job.over), 0.0)

    def _before_s(self, start: float, size: float) -> float:
        """Predicted seconds of the waiting rows that come before one of this start and size class, or with it."""
        seconds = 0.0
        for job, entries in self._by_job.items():
            if not job.over:
                for entry in entries:
                    ties = abs(entry.start - start) <= ROUNDING_S
                    if (entry.size_class > size) if ties else (entry.start > start):
                        break
                    seconds += entry.seconds
        return seconds

    def _waiting_heap(self, model: Model) -> list[Entry]:
        """A model's rows, of which the first one waits; none where none does."""
        heap = self._heaps.get(model, [])
        while heap and (heap[0].taken or heap[0].job.over):
            heapq.heappop(heap)
        if not heap:
            self._heaps.pop(model, None)
        return heap

    def _count(self, entry: Entry, sign: int) -> None:
        before = self._tokens[entry.job]
        after = before + sign * entry.room
        self._tokens[entry.job] = after
        if not after:
            del self._tokens[entry.job]
        room = min(after, self._max_request_room) - min(before, self._max_request_room)
        self.load.add(sign * entry.room, sign * entry.seconds, room)
