"""Decides which rows run next, and which of them run together as one packed batch.

Plain data: no clock, no threads, no event loop. Rows wait by lane, class, API key and model.

*Lanes.* A run cannot be interrupted. So rows that are predicted to take longer than `HEAVY_S` have a lane and a thread
of their own. Both lanes share the cores, but a light row never waits for a heavy one to end.

*Priorities and keys.* The classes share a lane's running time, and in each class its API keys do, by start-time fair
queueing (`shares.py`) of predicted seconds. While both classes wait, `batch` gets `BATCH_CLASS_SHARE` of the time, the
rest is `interactive`'s. While several keys of a class wait, each gets its weight's share of the class's time. A key of
which nothing waits takes nothing, and comes next when it comes. Without keys all requests are of one.

*Requests of a key and class.* The same queueing, in which each request is a flow. Every row has a start, in virtual
seconds. A request's first row starts at the queue's virtual time on arrival; each further row starts when the
one before it would end, by predicted seconds. The virtual time is the start of the row that last led a batch.
The row with the lowest start runs first. Rows with equal starts run by size class (powers of four of their predicted
seconds), then by arrival. So a short request runs next, however many rows others have queued, and large requests take
turns. A row whose knobs were lowered keeps the size class of what was asked for: it is cheaper, but does not overtake.

*Lowering.* A request that waits may be lowered once more when a row of it comes next and none has run (`lowering.py`).
Its rows keep their order, and the lane they wait in.

*The oldest request.* New requests could hold a large one back for ever. So `OLDEST_SHARE` of the running time of a
key and class is owed to its request that has waited longest: when that has got less, its next row leads a batch. A
request that first-come, first-served among its key's and class's would finish after w seconds of their running time is
thus finished after (w + one row) / OLDEST_SHARE seconds of it. Of n keys with equal weights each gets at least 1 / n of
its class's time, and `batch` at least `BATCH_CLASS_SHARE` of all: nothing starves.

*Idle work*, the service's own, waits apart. It runs only while no request waits or runs, in either lane.

*Batches.* Rows of one model join a batch in fair order, whatever their knobs, while its tokens stay within the budget
and its predicted time within `BATCH_S`; rows of the class `batch` do not join one that `interactive` leads. The first
row always runs; heavy rows run alone. So a short request waits for the batch that is running, and sometimes for one
that the oldest request or the other class leads. Each takes at most `HEAVY_S`, mostly `BATCH_S`.

*Room.* A lane takes a bounded number of tokens. A key may hold at most as many as then stay free: a key that floods
fills half of the queue, two fill a third each, and whoever comes finds room. Its first request may take all that is
free.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attenuator.runtime import Model
from attenuator.serve.flows import FlowQueue
from attenuator.serve.jobs import ANYONE, IDLE, LANES, Class, Entry, Flow, Job, Lane, Load, Lower, as_asked, lane_of
from attenuator.serve.shares import Shares

BATCH_S = 0.05
BATCH_CLASS_SHARE = 0.1
CLASS_WEIGHTS: dict[Class, float] = {"interactive": 1 - BATCH_CLASS_SHARE, "batch": BATCH_CLASS_SHARE, "idle": 1.0}


class LaneQueue:
    """Rows that wait in one lane.

    Attributes:
        reserved: estimated tokens of requests that are being tokenized, by API key.
    """

    def __init__(self, lane: Lane, max_batch_tokens: int) -> None:
        self.reserved = Counter[str]()
        self._lane = lane
        self._max_batch_tokens = max_batch_tokens
        self._classes = Shares[Class]()
        self._keys: dict[Class, Shares[str]] = {each: Shares() for each in CLASS_WEIGHTS}
        self._flows: dict[tuple[Class, str], FlowQueue] = {}

    @property
    def load(self) -> Load:
        """What waits."""
        return _sum_of(self._flows.values())

    def load_of(self, key: str) -> Load:
        """What waits of an API key."""
        return _sum_of(queue for (_, name), queue in self._flows.items() if name == key)

    def push(self, job: Job, rows: Sequence[tuple[int, float]], number: int) -> None:
        """Adds rows of a request.

        Args:
            job: the request.
            rows: index and predicted seconds of those that belong to this lane, at least one.
            number: arrival order of the first row; the others follow by one each.
        """
        flow = job.flow
        queue = self._flows.setdefault((flow.priority, flow.key), FlowQueue())
        queue.weight = flow.weight
        self._classes.join(flow.priority)
        self._keys[flow.priority].join(flow.key)
        queue.push(job, rows, number)

    def drop(self, job: Job) -> None:
        """Removes a request's waiting rows."""
        queue = self._flows.get((job.flow.priority, job.flow.key))
        if queue is not None:
            queue.drop(job)

    def lowered(self, job: Job, seconds: Sequence[float]) -> None:
        """Takes a request's waiting rows as cheaper ones; `seconds` is the predicted time of each of its rows."""
        queue = self._flows.get((job.flow.priority, job.flow.key))
        if queue is not None:
            queue.lowered(job, seconds)

    def take(self, lowers: Callable[[Job], bool]) -> list[Entry]:
        """The next batch: rows of one model, none where nothing waits.

        Args:
            lowers: called with the request of a row that comes next, which it may make cheaper; says whether it did.
        """
        if self._flows:
            self._forget_empty()
        if not self._flows:  # mostly: a lane looks here after each batch, before its answers leave
            return []
        place = self._next(None, tuple(self._keys))
        if place is None:
            return []
        priority, key = place
        self._classes.lead(priority)
        self._keys[priority].lead(key)
        oldest: dict[FlowQueue, Job | None] = {}
        taken: dict[FlowQueue, list[Entry]] = {}

        def remove(place: tuple[Class, str], entry: Entry) -> Entry:
            queue = self._flows[place]
            oldest.setdefault(queue, queue.oldest())
            taken.setdefault(queue, []).append(entry)
            queue.remove(entry)
            self._charge(place, entry.seconds)
            return entry

        queue = self._flows[place]
        while lowers((leading := queue.lead()).job):
            pass  # another row may lead by now
        batch = [remove(place, leading)]
        tokens, seconds = batch[0].tokens, batch[0].seconds
        joining: tuple[Class, ...] = ("interactive",) if priority == "interactive" else tuple(self._keys)
        while self._lane == "light" and (place := self._next(batch[0].job.model, joining)) is not None:
            entry = self._flows[place].head(batch[0].job.model)
            assert entry is not None
            if lowers(entry.job):
                continue
            tokens += entry.tokens
            seconds += entry.seconds
            if tokens > self._max_batch_tokens or seconds > BATCH_S:
                break
            batch.append(remove(place, entry))
        for queue, entries in taken.items():
            queue.settle(oldest[queue], entries)
        return batch

    def waiting(self) -> Iterator[Entry]:
        """The rows that wait, those of requests that have ended meanwhile aside."""
        for queue in self._flows.values():
            yield from queue.waiting()

    def wait_s(self, flow: Flow = ANYONE) -> float:
        """Predicted seconds of the rows that run before one of a flow that arrives now; without the batch that runs."""
        queue = self._flows.get((flow.priority, flow.key), FlowQueue())
        return self._until_received_s(flow, queue.wait_s(), 0.0)

    def ahead_s(self, own_s: float, last_s: float, flow: Flow = ANYONE) -> float:
        """Predicted time of the waiting rows that run before a request that comes now is done.

        Args:
            own_s: predicted time of its rows in this lane.
            last_s: of the last one of them.
            flow: whose it is.
        """
        if not self._flows:
            return 0.0
        queue = self._flows.get((flow.priority, flow.key), FlowQueue())
        ahead_s = self._until_received_s(flow, queue.ahead_s(own_s, last_s) + own_s, last_s) - own_s
        joining_s = BATCH_S if self._lane == "light" else 0.0  # rows behind its last one that run in the same batch
        return ahead_s + min(max(0.0, self.load.seconds - ahead_s), joining_s)

    def waited_s(self, now_s: float, flow: Flow = ANYONE) -> float:
        """How long the oldest request of a flow has waited of which no row has begun."""
        return self._flows.get((flow.priority, flow.key), FlowQueue()).waited_s(now_s)

    def _until_received_s(self, flow: Flow, seconds: float, last_s: float) -> float:
        """Predicted seconds that run in all until a flow has received some, of which the last row takes `last_s`.

        Others run until their start has reached where the flow's is before that row, as long as they have rows, and
        about one row longer.
        """
        keys = self._keys[flow.priority]
        end = keys.start(flow.key) + (seconds - last_s) / flow.weight
        for (priority, key), queue in self._flows.items():
            if priority == flow.priority and key != flow.key:
                seconds += _received_s(queue.load, queue.head(), (end - keys.start(key)) * queue.weight)
        end = self._classes.start(flow.priority) + (seconds - last_s) / CLASS_WEIGHTS[flow.priority]
        for other, weight in CLASS_WEIGHTS.items():
            queues = [queue for (priority, _), queue in self._flows.items() if priority == other]
            if other != flow.priority and queues:
                heads = [head for queue in queues if (head := queue.head()) is not None]
                head = max(heads, key=lambda entry: entry.seconds, default=None)
                seconds += _received_s(_sum_of(queues), head, (end - self._classes.start(other)) * weight)
        return seconds

    def _next(self, model: Model | None, classes: Sequence[Class]) -> tuple[Class, str] | None:
        """The flow whose row comes next, among those of some classes with a row of one model, or of any."""
        best: tuple[float, int, float, int, int] | None = None
        chosen = None
        for place, queue in self._flows.items():
            priority, key = place
            head = queue.head(model) if priority in classes else None
            if head is not None:
                order = (
                    self._classes.start(priority),
                    classes.index(priority),
                    self._keys[priority].start(key),
                    head.size_class,
                    head.number,
                )
                if best is None or order < best:
                    best, chosen = order, place
        return chosen

    def _charge(self, place: tuple[Class, str], seconds: float) -> None:
        priority, key = place
        self._classes.charge(priority, seconds / CLASS_WEIGHTS[priority])
        self._keys[priority].charge(key, seconds / self._flows[place].weight)

    def _forget_empty(self) -> None:
        """Forgets flows of which nothing waits, and what they have received once nobody else waits."""
        self._flows = {place: queue for place, queue in self._flows.items() if queue.oldest() is not None}
        classes = {priority for priority, _ in self._flows}
        for priority, keys in self._keys.items():
            if priority not in classes:
                keys.clear()
        if not classes:
            self._classes.clear()


def _sum_of(queues: Iterable[FlowQueue]) -> Load:
    load = Load()
    for queue in queues:
        load.add(queue.load.tokens, queue.load.seconds)
    return load


def _received_s(load: Load, head: Entry | None, seconds: float) -> float:
    """What someone else receives who is this much behind: whole rows, as far as they wait."""
    return 0.0 if head is None or seconds <= 0 else min(load.seconds, seconds + head.seconds)


def _never(job: Job) -> bool:
    """Idle work is not lowered."""
    return False


class Queue:
    """Rows that wait, in both lanes.

    Attributes:
        lanes: rows of requests.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self.lanes = {lane: LaneQueue(lane, max_batch_tokens) for lane in LANES}
        self._idle = {lane: LaneQueue(lane, max_batch_tokens) for lane in LANES}  # takes no room from requests
        self._count = 0

    def full(self, demand: Mapping[Lane, int], max_tokens: int, key: str = "") -> Lane | None:
        """The first lane without room for a request's tokens, or None; an empty lane takes any number.

        Args:
            demand: its tokens by lane.
            max_tokens: that a lane may hold.
            key: its API key, which may hold at most as many as then stay free; without one all of them.
        """
        for lane, tokens in demand.items():
            occupied = self.occupied(lane)
            if not tokens or not occupied:
                continue
            free = max_tokens - occupied - tokens
            own = self.occupied_by(lane, key) if key else 0
            if free < 0 or (own and own + tokens > free):
                return lane
        return None

    def vacant(self) -> bool:
        """Whether nothing waits and no room is reserved: then no request can be too large."""
        return not any(self.occupied(lane) for lane in LANES)

    def occupied(self, lane: Lane) -> int:
        """Tokens that wait in a lane or have room reserved there."""
        return self.lanes[lane].load.tokens + self.lanes[lane].reserved.total()

    def occupied_by(self, lane: Lane, key: str) -> int:
        """Those of one API key."""
        return self.lanes[lane].load_of(key).tokens + self.lanes[lane].reserved[key]

    def fullness(self, lane: Lane, key: str, max_tokens: int) -> float:
        """What a lane holds, of an API key or of all, as a share of what it may hold."""
        occupied = self.occupied(lane)
        if not key:
            return occupied / max_tokens
        own = self.occupied_by(lane, key)
        return 2 * own / max(1, max_tokens - (occupied - own))

    @contextlib.contextmanager
    def reserved(self, demand: Mapping[Lane, int], key: str = "") -> Iterator[None]:
        """Keeps room for a request of an API key that is being tokenized."""
        for lane, tokens in demand.items():
            self.lanes[lane].reserved[key] += tokens
        try:
            yield
        finally:
            for lane, tokens in demand.items():
                self.lanes[lane].reserved[key] -= tokens

    def push(self, job: Job, seconds: Sequence[float], now_s: float) -> set[Lane]:
        """Adds a request.

        Args:
            job: the request.
            seconds: predicted time of each row.
            now_s: the clock.

        Returns:
            The lanes where its rows wait.
        """
        job.submit(now_s)
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

    def take(self, lane: Lane, lower: Lower = as_asked) -> list[Entry]:
        """The next batch of a lane: rows of one model, none where nothing waits.

        Args:
            lane: where.
            lower: called with the requests whose rows come next; at most once each time with one that it lowers.
        """

        def lowers(job: Job) -> bool:
            seconds = lower(job)
            if seconds is None:
                return False
            for queue in self.lanes.values():  # a request's rows may wait in both
                queue.lowered(job, seconds)
            return True

        return self.lanes[lane].take(lowers)

    @property
    def idle_waits(self) -> bool:
        """Whether idle work waits."""
        return any(queue.load.tokens for queue in self._idle.values())

    def take_idle(self, lane: Lane) -> list[Entry]:
        """The next batch of idle work of a lane, none while a request waits in either lane."""
        return [] if any(queue.load.tokens for queue in self.lanes.values()) else self._idle[lane].take(_never)
