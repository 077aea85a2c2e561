"""The waiting rows of one flow in one lane, in fair order between its requests."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attenuator.runtime import Model
from attenuator.serve.jobs import Entry, Job, Load, room_of

OLDEST_SHARE = 0.25
ROUNDING_S = 1e-9  # sums of the same seconds in another order still tie


def size_class(seconds: float) -> int:
    """The size class of a row, from its predicted seconds."""
    return math.floor(math.log(seconds, 4))


class FlowQueue:
    """Rows of one API key and class that wait in one lane.

    Attributes:
        load: what waits.
        weight: of its share.
    """

    def __init__(self) -> None:
        self.load = Load()
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
        entries = []
        for offset, (index, seconds) in enumerate(rows):
            size = size_class(seconds / job.room_share)
            tokens = len(job.rows[index].token_ids)
            room = room_of(tokens, job.room_share)
            entries.append(Entry(0.0, size, number + offset, job, index, tokens, seconds, room))
        self._line_up(job, entries, self._virtual_s)

    def lowered(self, job: Job, seconds: Sequence[float]) -> None:
        """Takes a request's waiting rows as cheaper ones, in their old order and size classes.

        Args:
            job: the request, with its new knobs.
            seconds: predicted time of each of its rows.
        """
        waiting = self._by_job.get(job)
        if waiting is None:
            return
        cheaper = []
        for entry in waiting:
            entry.taken = True
            self._count(entry, -1)
            room = room_of(entry.tokens, job.room_share)
            cheaper.append(replace(entry, seconds=seconds[entry.index], room=room, taken=False))
        self._line_up(job, cheaper, waiting[0].start)

    def _line_up(self, job: Job, entries: Sequence[Entry], start: float) -> None:
        """Lets rows of a request wait, each to start where the one before it would end."""
        heap = self._heaps.setdefault(job.model, [])
        for entry in entries:
            entry.start = start
            start += entry.seconds
            heapq.heappush(heap, entry)
            self._count(entry, 1)
        self._by_job[job] = deque(entries)

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
        """Predicted seconds of the flow's rows that run before a request that comes now is done.

        Args:
            own_s: predicted time of its rows in this lane.
            last_s: of the last one of them.
        """
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
        self.load.add(sign * entry.room, sign * entry.seconds)
