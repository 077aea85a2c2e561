"""The queue in virtual time: requests that arrive, two lanes side by side, rows that take what was predicted."""

import asyncio
from dataclasses import dataclass, field

import numpy as np

from attenuator.runtime import Row
from attenuator.serve.scheduling.queue import BATCH_S, Queue
from attenuator.serve.scheduling.requests import ANYONE, HEAVY_S, LANES, Flow, Job, Lane

SHORT_S = 0.001


@dataclass(eq=False)
class Request:
    """A request of the simulation.

    Attributes:
        at_s: when it arrives.
        seconds: predicted time of each row, which is also what it takes.
        model: its model.
        flow: whose it is.
        ends_s: when each row is done.
    """

    at_s: float
    seconds: list[float]
    model: str = "m"
    flow: Flow = ANYONE
    ends_s: dict[int, float] = field(default_factory=dict)

    @property
    def wait_s(self) -> float:
        """From arrival to the end of its last row."""
        return max(self.ends_s.values()) - self.at_s


def simulate(loop: asyncio.AbstractEventLoop, requests: list[Request], max_batch_tokens: int = 8192) -> None:
    """Runs requests to their ends, each lane one batch at a time."""
    queue = Queue(max_batch_tokens, 10**9)
    arrivals = sorted(requests, key=lambda request: request.at_s)
    owners: dict[Job, Request] = {}
    free_s: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
    now_s = 0.0
    while arrivals or any(queue.lanes[lane].backlog.tokens for lane in LANES):
        while arrivals and arrivals[0].at_s <= now_s:
            request = arrivals.pop(0)
            ids = np.zeros(10, np.int64)
            rows = [Row(ids, ids, {})] * len(request.seconds)
            job = Job(request.model, rows, [], loop.create_future(), flow=request.flow)
            owners[job] = request
            queue.push(job, request.seconds, request.at_s)
        for lane in LANES:
            if free_s[lane] <= now_s:
                batch = queue.take(lane)
                check_batch(batch, lane)
                free_s[lane] = now_s + sum(entry.seconds for entry in batch)
                for entry in batch:
                    owners[entry.job].ends_s[entry.index] = free_s[lane]
        # Next comes an arrival, or the end of a batch on a lane where rows wait.
        ends = [free_s[lane] for lane in LANES if queue.lanes[lane].backlog.tokens]
        now_s = max(now_s, min(ends + [request.at_s for request in arrivals[:1]], default=now_s))
    for request in requests:
        assert sorted(request.ends_s) == list(range(len(request.seconds)))
        for lane_rows in ([s for s in enumerate(request.seconds) if (s[1] > HEAVY_S) == heavy] for heavy in (0, 1)):
            ends = [request.ends_s[index] for index, _ in lane_rows]
            assert ends == sorted(ends), "rows of a request run in order"


def check_batch(batch: list, lane: Lane) -> None:
    """One model, one lane, and no longer than a batch may be."""
    assert len({entry.job.model for entry in batch}) <= 1
    assert all((entry.seconds > HEAVY_S) == (lane == "heavy") for entry in batch)
    if len(batch) > 1:
        assert lane == "light"
        assert sum(entry.seconds for entry in batch) <= BATCH_S + 1e-9


def bulk(at_s: float, row_s: float, rows: int = 256) -> Request:
    return Request(at_s, [row_s] * rows)


def shorts(every_s: float, until_s: float, model: str = "m") -> list[Request]:
    return [Request(step * every_s, [SHORT_S], model) for step in range(int(until_s / every_s))]
