"""Requests, rows and lanes, as scheduling sees them."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from attenuator.api import Priority
from attenuator.calibration.times import RowTime
from attenuator.runtime import Model, Row, RowResult

Lane = Literal["light", "heavy"]
LANES: tuple[Lane, Lane] = ("light", "heavy")
HEAVY_S = 0.1


class Forecast(NamedTuple):
    """When a request that comes now would be done.

    Attributes:
        queue_s: predicted seconds of what runs before it.
        run_s: predicted seconds of its own rows, with a usual error on top.
    """

    queue_s: float
    run_s: float

    @property
    def total_s(self) -> float:
        """Until its last row is done."""
        return self.queue_s + self.run_s


@dataclass(frozen=True, slots=True)
class Flow:
    """Whose work a request is: the scheduler is fair between flows, then between the requests of each.

    Attributes:
        key: name of its API key; empty where there are not several.
        priority: its class.
        weight: of the key's share.
    """

    key: str = ""
    priority: Priority = "interactive"
    weight: float = 1.0


ANYONE = Flow()


@dataclass(slots=True, eq=False)
class Job:
    """One request's rows, from the queue to their results.

    Attributes:
        model: that runs it.
        rows: one per input, with the knobs that they run with; emptied when the job is dropped.
        times: of each row, as predicted beforehand.
        done: set to True, or to an exception, when every row has its result or one failed.
        results: by row.
        missing: how many of them.
        submitted_s: clock at submission.
        started_s: clock when its first row began to run.
        dropped: whether nobody waits for it any more.
        room_share: room that one of its tokens takes; less than 1 where its knobs were lowered.
        flow: whose work it is.
    """

    model: Model
    rows: list[Row]
    times: Sequence[RowTime]
    done: asyncio.Future[bool]
    results: list[RowResult | None] = field(default_factory=list)
    missing: int = 0
    submitted_s: float = 0.0
    started_s: float | None = None
    dropped: bool = False
    room_share: float = 1.0
    flow: Flow = ANYONE

    @property
    def over(self) -> bool:
        """Whether nobody waits for its rows any more."""
        return self.dropped or self.done.done()

    def submit(self, now_s: float) -> None:
        """Notes that it waits for its results from now on."""
        self.submitted_s = now_s
        self.missing = len(self.rows)
        self.results = [None] * self.missing

    def fail(self, error: Exception) -> None:
        """Ends it with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(slots=True, eq=False)
class Entry:
    """A row of a request: its place there, its length in tokens and its predicted seconds."""

    job: Job
    index: int
    tokens: int
    seconds: float


@dataclass(slots=True)
class Backlog:
    """What waits in a lane.

    Attributes:
        tokens: of all rows; of requests that were lowered, by their `room_share`.
        seconds: their predicted time.
        room: that they take, in tokens: of a large request less than its own.
    """

    tokens: int = 0
    seconds: float = 0.0
    room: int = 0

    def add(self, tokens: int, seconds: float, room: int) -> None:
        """Counts rows in, or out where negative."""
        self.tokens += tokens
        self.seconds += seconds
        self.room += room


def lane_of(seconds: float) -> Lane:
    """The lane of a row, from its predicted seconds."""
    return "heavy" if seconds > HEAVY_S else "light"


def tokens_counted(tokens: int, share: float) -> int:
    """What a row counts in the queue, in tokens, where each of its own counts a share of one."""
    return math.ceil(tokens * share)


def demand_of(tokens: Sequence[int], seconds: Sequence[float], room_share: float = 1.0) -> dict[Lane, int]:
    """Room that a request takes in the queue, in tokens by lane, by length and predicted seconds of each row."""
    demand = Counter[Lane]()
    for count, value in zip(tokens, seconds, strict=True):
        demand[lane_of(value)] += tokens_counted(count, room_share)
    return demand
