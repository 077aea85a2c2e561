"""Rows that wait, which of them run together as one packed batch, and the room for them. Plain data.

*Lanes.* A run cannot be interrupted. So rows that are predicted to take longer than `HEAVY_S` have a lane and a thread
of their own. Both lanes share the cores, but a light row never waits for a heavy one to end.

*Batches.* Rows of one model join a batch in fair order, whatever their knobs, while its tokens stay within the budget
and its predicted time within `BATCH_S`; rows of the class `batch` do not join one that `interactive` leads. The first
row always runs; heavy rows run alone. So a short request waits for the batch that is running, and sometimes for one
that the oldest request or the other class leads. Each takes at most `HEAVY_S`, mostly `BATCH_S`.

*Room.* A lane has room for a bounded number of tokens. A request takes room for its waiting tokens, for a quarter of
the lane at most: what is beyond that waits in the request and moves up as its rows run. So any request finds room in an
empty lane, and the largest leaves some. A request is admitted only if as much room stays free as it takes; the same
holds for all requests of an API key together: a key that floods fills half of a lane, two fill a third each, and
whoever comes finds room. The same holds for requests in progress.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attenuator.api import Priority
from attenuator.runtime import Model
from attenuator.serve.scheduling.fairness import FlowQueue, Place, Shares, Waiting
from attenuator.serve.scheduling.requests import ANYONE, LANES, Backlog, Entry, Flow, Job, Lane, lane_of

BATCH_S = 0.05
BATCH_CLASS_SHARE = 0.1
REQUEST_ROOM_SHARE = 0.25  # of a lane's room, which one request may take
EMPTY = FlowQueue(0, Backlog())
CLASS_WEIGHTS: dict[Priority, float] = {"interactive": 1 - BATCH_CLASS_SHARE, "batch": BATCH_CLASS_SHARE}


class LaneQueue:
    """Rows that wait in one lane.

    Attributes:
        backlog: what waits.
        reserved: room for requests that are being tokenized, in estimated tokens by API key.
    """

    def __init__(self, lane: Lane, max_batch_tokens: int, max_request_room: int) -> None:
        self.backlog = Backlog()
        self.reserved = Counter[str]()
        self._lane = lane
        self._max_request_room = max_request_room
        self._max_batch_tokens = max_batch_tokens
        self._classes = Shares[Priority]()
        self._keys: dict[Priority, Shares[str]] = {each: Shares() for each in CLASS_WEIGHTS}
        self._flows: dict[tuple[Priority, str], FlowQueue] = {}

    def backlog_of(self, key: str) -> Backlog:
        """What waits of an API key."""
        return _sum_of(queue for (_, name), queue in self._flows.items() if name == key)

    def push(self, job: Job, rows: Sequence[tuple[int, float]], number: int) -> None:
        """As `FlowQueue.push`, to the queue of the request's flow."""
        flow = job.flow
        flow_id = flow.priority, flow.key
        if flow_id not in self._flows:
            self._flows[flow_id] = FlowQueue(self._max_request_room, self.backlog)
        queue = self._flows[flow_id]
        queue.weight = flow.weight
        self._classes.join(flow.priority)
        self._keys[flow.priority].join(flow.key)
        queue.push(job, rows, number)

    def drop(self, job: Job) -> None:
        """Removes a request's waiting rows."""
        queue = self._flows.get((job.flow.priority, job.flow.key))
        if queue is not None:
            queue.drop(job)

    def take(self) -> list[Entry]:
        """The next batch: rows of one model, none where nothing waits."""
        if self._flows:
            self._forget_empty()
        if not self._flows:  # mostly: a lane looks here after each batch, before its answers leave
            return []
        following = self._next(None, tuple(self._keys))
        if following is None:
            return []
        flow_id, _ = following
        self._classes.lead(flow_id[0])
        self._keys[flow_id[0]].lead(flow_id[1])
        waiting = self._flows[flow_id].lead()
        entry = waiting.first()
        model, tokens, seconds = entry.job.model, entry.tokens, entry.seconds
        joining: tuple[Priority, ...] = ("interactive",) if flow_id[0] == "interactive" else tuple(self._keys)
        batch: list[Entry] = []
        oldest: dict[FlowQueue, Job | None] = {}
        taken: dict[FlowQueue, list[Entry]] = {}
        while True:
            queue = self._flows[flow_id]
            if queue not in oldest:
                oldest[queue], taken[queue] = queue.oldest(), []
            queue.take(waiting, entry)
            self._charge(flow_id, entry.seconds)
            taken[queue].append(entry)
            batch.append(entry)
            following = self._next(model, joining) if self._lane == "light" else None
            if following is None:
                break
            flow_id, waiting = following
            entry = waiting.first()
            tokens += entry.tokens
            seconds += entry.seconds
            if tokens > self._max_batch_tokens or seconds > BATCH_S:
                break
        for queue, entries in taken.items():
            queue.settle(oldest[queue], entries)
        return batch

    def waiting(self) -> Iterator[Entry]:
        """The rows that wait, those of requests that have ended meanwhile aside."""
        for queue in self._flows.values():
            yield from queue.waiting()

    def wait_s(self, flow: Flow = ANYONE) -> float:
        """Predicted seconds of the rows that run before one of a flow that arrives now; without the batch that runs."""
        queue = self._flows.get((flow.priority, flow.key), EMPTY)
        return self._until_received_s(flow, queue.wait_s(), 0.0)

    def ahead_s(self, own_s: float, last_s: float, flow: Flow = ANYONE) -> float:
        """Predicted time of the waiting rows that run before a request that comes now is done.

        The request is of a flow; its rows take `own_s` in this lane, the last of them `last_s`.
        """
        if not self._flows:
            return 0.0
        queue = self._flows.get((flow.priority, flow.key), EMPTY)
        ahead_s = self._until_received_s(flow, queue.ahead_s(own_s, last_s) + own_s, last_s) - own_s
        joining_s = BATCH_S if self._lane == "light" else 0.0  # rows behind its last one that run in the same batch
        return ahead_s + min(max(0.0, self.backlog.seconds - ahead_s), joining_s)

    def waited_s(self, now_s: float, flow: Flow = ANYONE) -> float:
        """How long the oldest request of a flow has waited of which no row has begun."""
        return self._flows.get((flow.priority, flow.key), EMPTY).waited_s(now_s)

    def _until_received_s(self, flow: Flow, seconds: float, last_s: float) -> float:
        """Predicted seconds that run in all until a flow has received some, of which the last row takes `last_s`.

        Others run until their start has reached where the flow's is before that row, as long as they have rows, and
        about one row longer.
        """
        keys = self._keys[flow.priority]
        end = keys.start(flow.key) + (seconds - last_s) / flow.weight
        for (priority, key), queue in self._flows.items():
            if priority == flow.priority and key != flow.key:
                seconds += _received_s(queue.backlog, queue.head(), (end - keys.start(key)) * queue.weight)
        end = self._classes.start(flow.priority) + (seconds - last_s) / CLASS_WEIGHTS[flow.priority]
        for other, weight in CLASS_WEIGHTS.items():
            queues = [queue for (priority, _), queue in self._flows.items() if priority == other]
            if other != flow.priority and queues:
                heads = [head for queue in queues if (head := queue.head()) is not None]
                head = max(heads, key=_seconds_of, default=None)
                seconds += _received_s(_sum_of(queues), head, (end - self._classes.start(other)) * weight)
        return seconds

    def _next(self, model: Model | None, classes: Sequence[Priority]) -> tuple[tuple[Priority, str], Waiting] | None:
        """The flow whose row comes next, among those of some classes with a row of one model, or of any; and whose."""
        best: tuple[float, int, float, int, int] | None = None
        chosen = None
        for flow_id, queue in self._flows.items():
            priority, key = flow_id
            head = queue.head(model) if priority in classes else None
            if head is not None:
                _, size, number, waiting = head
                if len(self._flows) == 1:
                    return flow_id, waiting
                shares = self._classes.start(priority), classes.index(priority), self._keys[priority].start(key)
                order = (*shares, size, number)
                if best is None or order < best:
                    best, chosen = order, (flow_id, waiting)
        return chosen

    def _charge(self, flow_id: tuple[Priority, str], seconds: float) -> None:
        priority, key = flow_id
        self._classes.charge(priority, seconds / CLASS_WEIGHTS[priority])
        self._keys[priority].charge(key, seconds / self._flows[flow_id].weight)

    def _forget_empty(self) -> None:
        """Forgets flows of which nothing waits, and what they have received once nobody else waits."""
        self._flows = {flow_id: queue for flow_id, queue in self._flows.items() if queue.oldest() is not None}
        classes = {priority for priority, _ in self._flows}
        for priority, keys in self._keys.items():
            if priority not in classes:
                keys.clear()
        if not classes:
            self._classes.clear()
            self.backlog.seconds = 0.0  # of which sums and differences leave something


def _sum_of(queues: Iterable[FlowQueue]) -> Backlog:
    backlog = Backlog()
    for queue in queues:
        backlog.add(queue.backlog.tokens, queue.backlog.seconds, queue.backlog.room)
    return backlog


def _seconds_of(head: Place) -> float:
    return head[3].rows[0][1]


def _received_s(backlog: Backlog, head: Place | None, seconds: float) -> float:
    """What someone else receives who is this much behind: whole rows, as far as they wait."""
    return 0.0 if head is None or seconds <= 0 else min(backlog.seconds, seconds + _seconds_of(head))


class Queue:
    """Rows that wait in both lanes, and the room for them and for requests in progress.

    Attributes:
        lanes: rows of requests.
        requests: in progress.
    """

    def __init__(self, max_batch_tokens: int, max_queue_tokens: int, max_requests: int = 512) -> None:
        """Starts empty; the limits are the settings of their names, `max_queue_tokens` of each lane."""
        self._max_queue_tokens = max_queue_tokens
        self._max_request_room = max(1, int(REQUEST_ROOM_SHARE * max_queue_tokens))
        self._max_requests = max_requests
        self.lanes = {lane: LaneQueue(lane, max_batch_tokens, self._max_request_room) for lane in LANES}
        self.requests = 0
        self._requests_of = Counter[str]()
        self._count = 0

    def enter(self, key: str, change: int = 1) -> None:
        """Counts a request of an API key as in progress, or no more with a change of -1."""
        self.requests += change
        self._requests_of[key] += change

    def too_many(self, key: str) -> str | None:
        """What is in progress already, in words, where there is no room for one more request of a key."""
        own = self._requests_of[key] if key else 0
        if self.requests >= self._max_requests:
            return f"{self.requests} requests are in progress"
        if own and own >= self._max_requests - self.requests:
            return f"{own} requests of the API key '{key}' are in progress"
        return None

    def full(self, demand: Mapping[Lane, int], key: str = "") -> Lane | None:
        """The first lane without room for a request's tokens by lane, or None; an empty lane takes any.

        `key` is its API key, empty where there are not several.
        """
        for lane, tokens in demand.items():
            occupied = self.occupied(lane)
            if not tokens or not occupied:
                continue
            taken = min(tokens, self._max_request_room)
            own = self.occupied_by(lane, key) if key else 0
            if own + taken > self._max_queue_tokens - occupied - taken:
                return lane
        return None

    def vacant(self) -> bool:
        """Whether nothing waits and no room is reserved: then no request can be too large."""
        light, heavy = self.lanes.values()
        return not (light.backlog.room or light.reserved or heavy.backlog.room or heavy.reserved)

    def occupied(self, lane: Lane) -> int:
        """Room that is taken or reserved in a lane, in tokens."""
        return self.lanes[lane].backlog.room + self.lanes[lane].reserved.total()

    def occupied_by(self, lane: Lane, key: str) -> int:
        """Room that one API key takes in a lane, in tokens."""
        return self.lanes[lane].backlog_of(key).room + self.lanes[lane].reserved[key]

    def fullness(self, key: str) -> float:
        """Used share of the queue or of the limit on requests, one request aside: of an API key, or of all."""
        requests, most = self.requests - 1, self._max_requests
        if key:
            own = max(0, self._requests_of[key] - 1)
            requests, most = 2 * own, most - (requests - own)
        return max(requests / most, *(self._lane_fullness(lane, key) for lane in LANES))

    def _lane_fullness(self, lane: Lane, key: str) -> float:
        occupied = self.occupied(lane)
        if not key:
            return occupied / self._max_queue_tokens
        own = self.occupied_by(lane, key)
        return 2 * own / max(1, self._max_queue_tokens - (occupied - own))

    @contextlib.contextmanager
    def reserved(self, demand: Mapping[Lane, int], key: str = "") -> Iterator[None]:
        """Keeps room for a request of an API key that is being tokenized."""
        room = {lane: min(tokens, self._max_request_room) for lane, tokens in demand.items()}
        for lane, tokens in room.items():
            self.lanes[lane].reserved[key] += tokens
        try:
            yield
        finally:
            for lane, tokens in room.items():
                reserved = self.lanes[lane].reserved
                reserved[key] -= tokens
                if not reserved[key]:
                    del reserved[key]

    def push(self, job: Job, seconds: Sequence[float], now_s: float) -> set[Lane]:
        """Adds a request, with the predicted seconds of each row; gives the lanes where they wait."""
        job.submit(now_s)
        by_lane: dict[Lane, list[tuple[int, float]]] = {}
        for index, value in enumerate(seconds):
            by_lane.setdefault(lane_of(value), []).append((index, value))
        for lane, rows in by_lane.items():
            self.lanes[lane].push(job, rows, self._count)
            self._count += 1
        return set(by_lane)

    def drop(self, job: Job) -> None:
        """Removes a request: its waiting rows never start."""
        job.dropped = True
        job.rows = []
        for queue in self.lanes.values():
            queue.drop(job)

    def take(self, lane: Lane) -> list[Entry]:
        """The next batch of a lane: rows of one model, none where nothing waits."""
        return self.lanes[lane].take()
