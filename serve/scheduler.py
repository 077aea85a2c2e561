"""Which rows run next, and together.

Plain data: no clock, no threads, no event loop. Rows wait in one order per model and lane, and leave as packed batches.

*Order.* A row's place is its request's arrival plus the predicted time of that request's rows up to and including it.
A short request overtakes the many rows of a large one, yet nothing waits for ever: a row is overtaken only by what
arrives before its place, which is its arrival plus its own work.

*Batches.* Rows join in that order, whatever their knobs, while tokens stay within the budget and the predicted time
within `BATCH_S`: a batch-mate delays a short row by no more than that. The first row always runs.

*Lanes.* A run cannot be interrupted, so rows predicted to take longer than `HEAVY_S` go through a lane, and a thread,
of their own. Both lanes share the cores; a light row never waits for a heavy one to end.
"""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from attenuator.runtime import Row, RowResult

Lane = Literal["light", "heavy"]
LANES: tuple[Lane, Lane] = ("light", "heavy")
BATCH_S = 0.05
HEAVY_S = 0.2
RUN_OVERHEAD_S = 2e-4


@dataclass(slots=True, eq=False)
class Job:
    """One request's rows on their way.

    Attributes:
        model: name of the model.
        rows: one an input; emptied when the job is dropped.
        costs: predicted multiply-adds of each row.
        done: set to True, or to an exception, when every row has its result or one failed.
        results: by row.
        submitted_s: clock at submission.
        started_s: clock when its first row began to run.
        waiting: what of it waits, by lane.
        dropped: whether nobody wants it any more.
    """

    model: str
    rows: list[Row]
    costs: Sequence[float]
    done: asyncio.Future[bool]
    results: list[RowResult | None] = field(default_factory=list)
    submitted_s: float = 0.0
    started_s: float | None = None
    waiting: dict[Lane, "Load"] = field(default_factory=dict)
    dropped: bool = False

    @property
    def over(self) -> bool:
        """Whether nobody waits for its rows any more."""
        return self.dropped or self.done.done()


@dataclass(slots=True, order=True)
class Entry:
    """A row in the queue, ordered by its place.

    Attributes:
        place: arrival plus predicted time of the request up to here, in seconds.
        number: arrival order, where places are equal.
        job: the request.
        index: its row.
        lane: where it waits.
        tokens: its length.
        seconds: its predicted time.
    """

    place: float
    number: int
    job: Job = field(compare=False)
    index: int = field(compare=False)
    lane: Lane = field(compare=False)
    tokens: int = field(compare=False)
    seconds: float = field(compare=False)


@dataclass(slots=True)
class Pace:
    """How fast a model runs here: a moving average over the batches that ran.

    Attributes:
        cost_per_s: predicted multiply-adds that a second gets through.
    """

    cost_per_s: float = 5e9

    def seconds(self, cost: float) -> float:
        """Predicted time of a cost."""
        return RUN_OVERHEAD_S + cost / self.cost_per_s

    def saw(self, cost: float, seconds: float) -> None:
        """Learns from a batch."""
        measured = cost / max(seconds - RUN_OVERHEAD_S, 1e-5)
        self.cost_per_s += 0.1 * (min(max(measured, 1e8), 1e13) - self.cost_per_s)


@dataclass(slots=True)
class Load:
    """What waits in a lane, or of a job in it.

    Attributes:
        tokens: of rows whose request is still wanted.
        seconds: their predicted time.
    """

    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts rows in, or out where negative."""
        self.tokens += tokens
        self.seconds += seconds


class Queue:
    """Rows that wait.

    Attributes:
        load: what waits, by lane.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self.load = {lane: Load() for lane in LANES}
        self._max_batch_tokens = max_batch_tokens
        self._waiting: dict[Lane, dict[str, list[Entry]]] = {lane: {} for lane in LANES}
        self._count = 0

    def plan(self, job: Job, pace: Pace, now_s: float) -> list[Entry]:
        """Gives a request's rows their places and lanes, without queueing them.

        Args:
            job: the request.
            pace: of its model.
            now_s: the clock.

        Returns:
            One entry a row.
        """
        job.submitted_s = now_s
        job.results = [None] * len(job.rows)
        place = now_s
        entries = []
        for index, (row, cost) in enumerate(zip(job.rows, job.costs, strict=True)):
            seconds = pace.seconds(cost)
            place += seconds
            lane: Lane = "heavy" if seconds > HEAVY_S else "light"
            entries.append(Entry(place, self._count, job, index, lane, len(row.token_ids), seconds))
            self._count += 1
        return entries

    def full(self, entries: Sequence[Entry], max_tokens: int) -> Lane | None:
        """The lane that has no room for these rows; an empty lane takes rows of any length."""
        for lane, load in self.load.items():
            tokens = sum(entry.tokens for entry in entries if entry.lane == lane)
            if tokens and load.tokens and load.tokens + tokens > max_tokens:
                return lane
        return None

    def push(self, entries: Sequence[Entry]) -> None:
        """Adds planned rows."""
        for entry in entries:
            heapq.heappush(self._waiting[entry.lane].setdefault(entry.job.model, []), entry)
            self._count_in(entry, 1)

    def drop(self, job: Job) -> None:
        """Forgets a request: its rows never start."""
        job.dropped = True
        job.rows = []
        for lane, load in job.waiting.items():
            self.load[lane].add(-load.tokens, -load.seconds)
        job.waiting = {}

    def take(self, lane: Lane) -> list[Entry]:
        """The next batch of a lane: rows of one model, none where nothing waits."""
        heads = []
        for model, waiting in list(self._waiting[lane].items()):
            while waiting and waiting[0].job.over:
                self._remove(heapq.heappop(waiting))
            if waiting:
                heads.append((waiting[0], waiting))
            else:
                del self._waiting[lane][model]
        if not heads:
            return []
        _, waiting = min(heads, key=lambda head: head[0])
        batch = [heapq.heappop(waiting)]
        tokens, seconds = batch[0].tokens, batch[0].seconds
        while waiting and lane == "light":
            entry = waiting[0]
            fits = tokens + entry.tokens <= self._max_batch_tokens and seconds + entry.seconds <= BATCH_S
            if not entry.job.over and not fits:
                break
            heapq.heappop(waiting)
            if entry.job.over:
                self._remove(entry)
                continue
            batch.append(entry)
            tokens += entry.tokens
            seconds += entry.seconds
        for entry in batch:
            self._remove(entry)
        return batch

    def _count_in(self, entry: Entry, sign: int) -> None:
        for load in (self.load[entry.lane], entry.job.waiting.setdefault(entry.lane, Load())):
            load.add(sign * entry.tokens, sign * entry.seconds)

    def _remove(self, entry: Entry) -> None:
        if not entry.job.dropped:  # a dropped job took all its rows off the counts at once
            self._count_in(entry, -1)
