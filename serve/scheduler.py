"""Decides which rows run next, and which of them run together as one packed batch.

Plain data: no clock, no threads, no event loop. Rows wait by model and lane.

*Lanes.* A run cannot be interrupted. So rows that are predicted to take longer than `HEAVY_S` have a lane and a thread
of their own. Both lanes share the cores, but a light row never waits for a heavy one to end.

*Order.* Start-time fair queueing (Goyal, Vin and Cheng, 1996), in which each request is a flow. Every row has a start,
in virtual seconds. A request's first row starts at the lane's virtual time on arrival; each further row starts when the
one before it would end, by predicted seconds. The lane's virtual time is the start of the row that last led a batch.
The row with the lowest start runs first. Rows with equal starts run by size class (powers of four of their predicted
seconds), then by arrival. So a short request runs next, however many rows others have queued, and large requests take
turns. A row whose knobs were lowered keeps the size class of what was asked for: it is cheaper, but does not overtake.

*The oldest request.* New requests could hold a large one back for ever. So `OLDEST_SHARE` of a lane's running time is
owed to the request that has waited longest: when it has got less, its next row leads a batch. A request that
first-come, first-served would finish after w seconds is thus finished after (w + one row) / OLDEST_SHARE seconds.

*Idle work*, the service's own, waits apart. It runs only while no request waits or runs, in either lane.

*Batches.* Rows of one model join a batch in fair order, whatever their knobs, while its tokens stay within the budget
and its predicted time within `BATCH_S`. The first row always runs; heavy rows run alone. So a short request waits for
the batch that is running, and sometimes for one that the oldest request leads. Each takes at most `HEAVY_S`, mostly
`BATCH_S`.
"""

import contextlib
import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from attenuator.runtime import Model
from attenuator.serve.jobs import IDLE, LANES, Entry, Job, Lane, Load, lane_of, room_of

BATCH_S = 0.05
OLDEST_SHARE = 0.25


def size_class(seconds: float) -> int:
    """The size class of a row, from its predicted seconds."""
    return math.floor(math.log(seconds, 4))


class LaneQueue:
    """Rows that wait in one lane.

    Attributes:
        load: what waits.
        reserved_tokens: estimated tokens of requests that are being tokenized.
    """

    def __init__(self, lane: Lane, max_batch_tokens: int) -> None:
        self.load = Load()
        self.reserved_tokens = 0
        self._lane = lane
        self._max_batch_tokens = max_batch_tokens
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
        start = self._virtual_s
        entries = self._by_job[job] = deque[Entry]()
        heap = self._heaps.setdefault(job.model, [])
        for offset, (index, seconds) in enumerate(rows):
            size = size_class(seconds / job.room_share)
            tokens = len(job.rows[index].token_ids)
            room = room_of(tokens, job.room_share)
            entry = Entry(start, size, number + offset, job, index, tokens, seconds, room)
            start += seconds
            entries.append(entry)
            heapq.heappush(heap, entry)
            self._count(entry, 1)

    def drop(self, job: Job) -> None:
        """Removes a request's waiting rows."""
        for entry in self._by_job.pop(job, ()):
            entry.taken = True
            self._count(entry, -1)

    def take(self) -> list[Entry]:
        """The next batch: rows of one model, none where nothing waits."""
        oldest = self._oldest()
        if oldest is None:
            return []
        first = self._by_job[oldest][0]
        if self._owed_s < first.seconds:
            first = min(heap[0] for heap in self._clean_heaps())
            self._virtual_s = first.start
        batch = [self._remove(first)]
        if self._lane == "light":
            batch += self._companions(first)
        seconds = sum(entry.seconds for entry in batch)
        received = sum(entry.seconds for entry in batch if entry.job is oldest)
        self._owed_s = max(0.0, self._owed_s + OLDEST_SHARE * seconds - received)
        return batch

    def waiting(self) -> Iterator[Entry]:
        """The rows that wait, those of requests that have ended meanwhile aside."""
        for job, entries in self._by_job.items():
            if not job.over:
                yield from entries

    def wait_s(self) -> float:
        """Predicted seconds of the rows that run before a row that arrives now; the batch that runs is not counted."""
        return self._before_s(self._virtual_s, math.inf)

    def ahead_s(self, own_s: float, last_s: float) -> float:
        """Predicted time of the waiting rows that run before a request that comes now is done.

        Args:
            own_s: predicted time of its rows in this lane.
            last_s: of the last one of them.
        """
        ahead_s = self._before_s(self._virtual_s + own_s - last_s, size_class(last_s))
        others_s = max(0.0, self.load.seconds - ahead_s)
        joining_s = BATCH_S if self._lane == "light" else 0.0  # rows behind its last one that run in the same batch
        owed_s = (ahead_s + own_s) * OLDEST_SHARE / (1 - OLDEST_SHARE)
        return ahead_s + min(others_s, joining_s + owed_s)

    def waited_s(self, now_s: float) -> float:
        """How long the oldest request has waited of which no row has begun."""
        return next((now_s - job.submitted_s for job in self._by_job if job.started_s is None and not job.over), 0.0)

    def _before_s(self, start: float, size: float) -> float:
        """Predicted seconds of the waiting rows that come before one of this start and size class, or with it."""
        seconds = 0.0
        for job, entries in self._by_job.items():
            if not job.over:
                for entry in entries:
                    if (entry.start, entry.size_class) > (start, size):
                        break
                    seconds += entry.seconds
        return seconds

    def _oldest(self) -> Job | None:
        """The request that has waited longest; removes requests that have ended meanwhile."""
        while self._by_job:
            job = next(iter(self._by_job))
            if not job.over:
                return job
            self.drop(job)
        self._owed_s = 0.0
        self._heaps.clear()
        return None

    def _companions(self, first: Entry) -> list[Entry]:
        """Takes the rows that run beside a batch's first one."""
        companions: list[Entry] = []
        tokens, seconds = first.tokens, first.seconds
        heap = self._heaps.get(first.job.model, [])
        while self._clean(heap):
            tokens += heap[0].tokens
            seconds += heap[0].seconds
            if tokens > self._max_batch_tokens or seconds > BATCH_S:
                break
            companions.append(self._remove(heap[0]))
        return companions

    def _clean_heaps(self) -> list[list[Entry]]:
        self._heaps = {model: heap for model, heap in self._heaps.items() if self._clean(heap)}
        return list(self._heaps.values())

    def _clean(self, heap: list[Entry]) -> bool:
        """Removes rows from the top that no longer wait; returns whether a waiting one is left."""
        while heap and (heap[0].taken or heap[0].job.over):
            heapq.heappop(heap)
        return bool(heap)

    def _remove(self, entry: Entry) -> Entry:
        """Takes a row, which must be the first one waiting of its request."""
        entries = self._by_job[entry.job]
        entries.popleft()
        if not entries:
            del self._by_job[entry.job]
        entry.taken = True
        self._count(entry, -1)
        return entry

    def _count(self, entry: Entry, sign: int) -> None:
        self.load.add(sign * entry.room, sign * entry.seconds)


class Queue:
    """Rows that wait, in both lanes.

    Attributes:
        lanes: rows of requests.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self.lanes = {lane: LaneQueue(lane, max_batch_tokens) for lane in LANES}
        self._idle = {lane: LaneQueue(lane, max_batch_tokens) for lane in LANES}  # takes no room from requests
        self._count = 0

    def full(self, demand: Mapping[Lane, int], max_tokens: int) -> Lane | None:
        """The first lane without room for a request's tokens, or None; an empty lane takes any number."""
        for lane, tokens in demand.items():
            occupied = self.occupied(lane)
            if tokens and occupied and occupied + tokens > max_tokens:
                return lane
        return None

    def occupied(self, lane: Lane) -> int:
        """Tokens that wait in a lane or have room reserved there."""
        return self.lanes[lane].load.tokens + self.lanes[lane].reserved_tokens

    @contextlib.contextmanager
    def reserved(self, demand: Mapping[Lane, int]) -> Iterator[None]:
        """Keeps room for a request that is being tokenized."""
        for lane, tokens in demand.items():
            self.lanes[lane].reserved_tokens += tokens
        try:
            yield
        finally:
            for lane, tokens in demand.items():
                self.lanes[lane].reserved_tokens -= tokens

    def push(self, job: Job, seconds: Sequence[float], now_s: float) -> set[Lane]:
        """Adds a request.

        Args:
            job: the request.
            seconds: predicted time of each row.
            now_s: the clock.

        Returns:
            The lanes where its rows wait.
        """
        job.submitted_s = now_s
        job.results = [None] * len(job.rows)
        by_lane: dict[Lane, list[tuple[int, float]]] = {}
        for index, value in enumerate(seconds):
            by_lane.setdefault(lane_of(value), []).append((index, value))
        queues = self._idle if job.flow == IDLE else self.lanes
        for lane, rows in by_lane.items():
            queues[lane].push(job, rows, self._count)
            self._count += len(rows)
        return set(by_lane)

    def drop(self, job: Job) -> None:
        """Removes a request: its waiting rows never start."""
        job.dropped = True
        job.rows = []
        for queue in (*self.lanes.values(), *self._idle.values()):
            queue.drop(job)

    def take(self, lane: Lane) -> list[Entry]:
        """The next batch of a lane: rows of one model, none where nothing waits."""
        return self.lanes[lane].take()

    @property
    def idle_waits(self) -> bool:
        """Whether idle work waits."""
        return any(queue.load.tokens for queue in self._idle.values())

    def take_idle(self, lane: Lane) -> list[Entry]:
        """The next batch of idle work of a lane, none while a request waits in either lane."""
        return [] if any(queue.load.tokens for queue in self.lanes.values()) else self._idle[lane].take()
