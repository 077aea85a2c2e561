"""When a request that comes now would be done: the forecast against what the queue then does, in virtual time."""

import asyncio
import random
from collections.abc import Iterator

import numpy as np
import pytest

from attenuator.runtime import Row
from attenuator.serve.scheduling.queue import BATCH_S, Queue
from attenuator.serve.scheduling.requests import ANYONE, Flow, Job, Lane


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    created = asyncio.new_event_loop()
    yield created
    created.close()


class Simulation:
    """One lane, whose rows take what was predicted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lane: Lane) -> None:
        self.queue = Queue(8192, 10**9)
        self.loop = loop
        self.lane = lane
        self.now_s = 0.0

    def add(self, *seconds: float, flow: Flow = ANYONE) -> Job:
        ids = np.zeros(10, np.int64)
        job = Job("m", [Row(ids, ids, {})] * len(seconds), [], self.loop.create_future(), flow=flow)
        self.queue.push(job, seconds, self.now_s)
        return job

    def run_batch(self) -> list[Job]:
        batch = self.queue.take(self.lane)
        self.now_s += sum(entry.seconds for entry in batch)
        return [entry.job for entry in batch]

    def ahead_s(self, *seconds: float, flow: Flow = ANYONE) -> float:
        return self.queue.lanes[self.lane].ahead_s(sum(seconds), seconds[-1], flow)

    def wait_for(self, job: Job) -> float:
        """Seconds until a request's last row is done, if nothing else arrives."""
        began_s, remaining = self.now_s, len(job.rows)
        while remaining:
            remaining -= self.run_batch().count(job)
        return self.now_s - began_s


def test_an_empty_lane_has_nothing_ahead(loop: asyncio.AbstractEventLoop) -> None:
    assert Simulation(loop, "light").ahead_s(0.01) == 0
    assert Simulation(loop, "heavy").ahead_s(1.0, 1.0) == 0


def test_a_short_request_does_not_wait_for_all_rows_of_a_large_one(loop: asyncio.AbstractEventLoop) -> None:
    simulation = Simulation(loop, "light")
    simulation.add(*[0.04] * 200)
    simulation.run_batch()
    assert simulation.ahead_s(0.001) < 0.15 < simulation.queue.lanes["light"].backlog.seconds
    assert simulation.wait_for(simulation.add(0.001)) < 0.15


def test_rows_that_join_its_batch_are_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    simulation = Simulation(loop, "light")
    simulation.add(*[0.02] * 10)
    simulation.run_batch()
    forecast_s = simulation.ahead_s(0.001) + 0.001
    actual_s = simulation.wait_for(simulation.add(0.001))
    assert 0.04 < actual_s <= forecast_s


@pytest.mark.parametrize("lane", ["light", "heavy"])
@pytest.mark.parametrize("seed", range(40))
def test_requests_are_done_within_the_forecast(loop: asyncio.AbstractEventLoop, lane: Lane, seed: int) -> None:
    """If nothing arrives afterwards, and every row takes what was predicted, the forecast is a close bound."""
    draw = random.Random(seed)
    choices = [0.0005, 0.002, 0.02, 0.09] if lane == "light" else [0.2, 1.0, 3.0]
    simulation = Simulation(loop, lane)
    for _ in range(draw.randint(0, 30)):
        simulation.add(*draw.choices(choices, k=draw.choice([1, 1, 3, 20])))
        for _ in range(draw.randint(0, 2)):
            simulation.run_batch()
    own = draw.choices(choices, k=draw.choice([1, 1, 2, 10]))
    forecast_s = simulation.ahead_s(*own) + sum(own)
    largest_s = max(choices)
    actual_s = simulation.wait_for(simulation.add(*own))
    assert actual_s <= forecast_s + largest_s + BATCH_S, "one row of the oldest request, and one batch"
    assert forecast_s <= 2.5 * actual_s + 3 * BATCH_S


SHARES = {Flow("a"): 0.18, Flow("b", weight=4.0): 0.72, Flow("c", "batch"): 0.05, Flow("a", "batch"): 0.05}


@pytest.mark.parametrize("lane", ["light", "heavy"])
@pytest.mark.parametrize("seed", range(40))
def test_the_forecast_follows_keys_and_classes(loop: asyncio.AbstractEventLoop, lane: Lane, seed: int) -> None:
    draw = random.Random(seed)
    choices = [0.0005, 0.002, 0.02, 0.09] if lane == "light" else [0.2, 1.0, 3.0]
    simulation = Simulation(loop, lane)
    for _ in range(draw.randint(5, 40)):
        simulation.add(*draw.choices(choices, k=draw.choice([1, 1, 3, 20])), flow=draw.choice(list(SHARES)))
        for _ in range(draw.randint(0, 2)):
            simulation.run_batch()
    flow = draw.choice(list(SHARES))
    own = draw.choices(choices, k=draw.choice([1, 1, 2, 10]))
    forecast_s = simulation.ahead_s(*own, flow=flow) + sum(own)
    actual_s = simulation.wait_for(simulation.add(*own, flow=flow))
    row_s = (max(choices) + BATCH_S) / SHARES[flow]  # one row more of its own flow, or a batch, and what others get
    assert actual_s <= forecast_s + row_s
    assert forecast_s <= 2.5 * actual_s + row_s
