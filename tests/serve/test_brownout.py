"""Brownout, simulated: virtual time, Poisson arrivals, one lane that runs a batch at a time."""

import asyncio
import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from attenuator.bundle import BundleKnob
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Row
from attenuator.serve.accuracy.brownout import FALL_TARGETS, FALL_TO, Floors, Level, lowered, room_share
from attenuator.serve.scheduling.queue import Queue
from attenuator.serve.scheduling.requests import Job, tokens_counted

HASHES = BundleKnob.model_validate(KNOBS["num_hashes"], from_attributes=True)
EXACT: dict[str, KnobValue] = {"num_hashes": 0}
FLOOR: dict[str, KnobValue] = {"num_hashes": 8}
TARGET_S = 0.5
RECOVERED_S = FALL_TARGETS * TARGET_S * math.log(1 - 1 / FALL_TO)
TOKENS = 1000
MAX_REQUESTS = 100


def seconds_of(knobs: Mapping[str, KnobValue]) -> float:
    """Exact rows take 80 ms, those at the floor 4 ms: mostly what does not depend on the knob."""
    return 0.08 if knobs["num_hashes"] == 0 else 0.003 + 0.000125 * knobs["num_hashes"]


@dataclass
class Outcome:
    """What became of one request.

    Attributes:
        at_s: when it arrived.
        level: then; 0 where it may not be lowered.
        hashes: what it ran with.
        wait_s: until its batch began; infinite where it was refused.
    """

    at_s: float
    level: float
    hashes: KnobValue
    wait_s: float = float("inf")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    created = asyncio.new_event_loop()
    yield created
    created.close()


def poisson(seed: int, phases: list[tuple[float, float]]) -> list[float]:
    """Times of arrival.

    Args:
        seed: of the draws.
        phases: how long each lasts in seconds, and arrivals in it as a multiple of what the server does exactly.
    """
    draw, now_s, end_s, times = random.Random(seed), 0.0, 0.0, []
    for lasts_s, load in phases:
        end_s += lasts_s
        while (now_s := now_s + draw.expovariate(load / seconds_of(EXACT))) < end_s:
            times.append(now_s)
        now_s = end_s
    return times


def simulate(
    loop: asyncio.AbstractEventLoop,
    arrivals: list[float],
    floors: Floors,
    exact_error: float = 1.0,
) -> list[Outcome]:
    """Runs requests of one row; those that find `MAX_REQUESTS` waiting are refused.

    Args:
        loop: for futures.
        arrivals: in seconds.
        floors: of every request; empty for none.
        exact_error: what exact rows take, as a multiple of what is predicted.
    """
    queue, level, outcomes = Queue(8192, 10**9), Level(TARGET_S), []
    waiting: dict[Job, Outcome] = {}
    free_s = predicted_s = 0.0

    def reached(now_s: float) -> float:
        if not floors:
            return 0.0
        lane = queue.lanes["light"]
        wait_s = max(max(0.0, predicted_s - now_s) + lane.wait_s(), lane.waited_s(now_s))
        return level.observe(wait_s, len(waiting) / MAX_REQUESTS, now_s)

    def run_until(now_s: float) -> None:
        nonlocal free_s, predicted_s
        while waiting and free_s <= now_s:
            batch = queue.take("light")
            began_s = max(free_s, max(entry.job.submitted_s for entry in batch))
            predicted_s = free_s = began_s + sum(entry.seconds for entry in batch)
            for entry in batch:
                entry.job.started_s = began_s
                outcome = waiting.pop(entry.job)
                if not outcome.hashes:
                    free_s += entry.seconds * (exact_error - 1)
                outcome.wait_s = began_s - outcome.at_s

    for now_s in arrivals:
        run_until(now_s)
        share = reached(now_s)
        knobs = lowered([HASHES], EXACT, floors, share, seconds_of)
        outcomes.append(Outcome(now_s, share, knobs["num_hashes"]))
        if len(waiting) < MAX_REQUESTS:
            ids = np.zeros(TOKENS, np.int64)
            share = room_share([seconds_of(knobs)], [seconds_of(EXACT)])
            job = Job("m", [Row(ids, ids, knobs)], [1.0], loop.create_future(), room_share=share)
            waiting[job] = outcomes[-1]
            queue.push(job, [seconds_of(knobs)], now_s)
    run_until(float("inf"))
    return outcomes


def refused(outcomes: list[Outcome]) -> float:
    return sum(outcome.wait_s == float("inf") for outcome in outcomes) / len(outcomes)


@pytest.mark.parametrize("load", [1.5, 2.0, 4.0, 10.0])
def test_a_server_that_would_refuse_answers_everyone_within_the_target(
    loop: asyncio.AbstractEventLoop, load: float
) -> None:
    arrivals = poisson(1, [(60.0, load)])
    exact = simulate(loop, arrivals, {})
    assert refused(exact[len(exact) // 2 :]) == pytest.approx(1 - 1 / load, abs=0.06)
    outcomes = simulate(loop, arrivals, FLOOR)
    assert refused(outcomes) == 0
    waits = sorted(outcome.wait_s for outcome in outcomes)
    assert waits[int(0.99 * len(waits))] <= TARGET_S
    assert all(outcome.hashes == 0 or outcome.hashes >= FLOOR["num_hashes"] for outcome in outcomes)


def test_predictions_that_are_too_short_do_not_let_the_queue_grow(loop: asyncio.AbstractEventLoop) -> None:
    """What waits longer than was predicted counts by how long it has waited."""
    outcomes = simulate(loop, poisson(3, [(60.0, 2.0)]), FLOOR, exact_error=3.0)
    assert refused(outcomes) == 0
    waits = sorted(outcome.wait_s for outcome in outcomes)
    assert waits[int(0.95 * len(waits))] <= TARGET_S


def test_the_level_settles_under_steady_load_and_returns_to_zero_after_it(loop: asyncio.AbstractEventLoop) -> None:
    outcomes = simulate(loop, poisson(2, [(60.0, 2.0), (30.0, 0.1)]), FLOOR)
    steady = [outcome.level for outcome in outcomes if 10 < outcome.at_s < 60]
    assert 0.05 < statistics.fmean(steady) < 0.8
    assert statistics.pstdev(steady) < 0.2
    recovered = [outcome for outcome in outcomes if outcome.at_s > 60 + RECOVERED_S + 5]
    assert recovered
    assert {(outcome.level, outcome.hashes) for outcome in recovered} == {(0.0, 0)}


def test_a_burst_is_lowered_as_it_arrives(loop: asyncio.AbstractEventLoop) -> None:
    """Nobody waits for the controller: the requests before raise the wait that the next one is predicted."""
    outcomes = simulate(loop, [1.0 + 1e-6 * number for number in range(MAX_REQUESTS)], FLOOR)
    levels = [outcome.level for outcome in outcomes]
    assert (levels[0], levels[-1]) == (0.0, 1.0)
    assert levels == sorted(levels)
    assert max(outcome.wait_s for outcome in outcomes) < 2 * TARGET_S
    assert refused(outcomes) == 0


def test_without_load_nothing_is_lowered(loop: asyncio.AbstractEventLoop) -> None:
    outcomes = simulate(loop, [0.1 * number for number in range(100)], FLOOR)
    assert {outcome.hashes for outcome in outcomes} == {0}


def test_the_level_rises_at_once_and_falls_slowly() -> None:
    level = Level(TARGET_S)
    assert level.observe(TARGET_S / 2, 0.0, 1.0) == 0.0
    assert level.observe(0.75 * TARGET_S, 0.0, 2.0) == pytest.approx(0.5)
    assert level.observe(9 * TARGET_S, 0.0, 2.0) == 1.0
    later = [level.at(2.0 + share * RECOVERED_S) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert later[0] == 1.0
    assert later[-1] == 0.0
    steps = [before - after for before, after in itertools.pairwise(later)]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] > 0, "it falls all the way"
    half = level.observe(0.0, 0.0, 2.0 + RECOVERED_S / 4)
    assert half == later[1]
    assert level.at(1.0) == half, "a clock that stands still or goes back does not raise it"
    assert Level(TARGET_S).observe(0.0, 1.0, 1.0) == 1.0, "a full queue counts as much as a long wait"
    assert Level(TARGET_S).observe(0.0, 0.75, 1.0) == 1.0, "bursts still find room where knobs are at their floors"
    assert Level(TARGET_S).observe(0.0, 0.5625, 1.0) == pytest.approx(0.5)
    assert Level(TARGET_S).observe(0.0, 0.375, 1.0) == 0.0


def test_a_large_request_does_not_count_as_wait_for_those_that_run_before_its_rows(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = Queue(8192, 10**9)
    ids = np.zeros(10, np.int64)
    large = Job("m", [Row(ids, ids, {})] * 100, [1.0] * 100, loop.create_future())
    queue.push(large, [0.04] * 100, 0.0)
    lane = queue.lanes["light"]
    assert lane.backlog.seconds == pytest.approx(4.0)
    assert lane.wait_s() == pytest.approx(0.04)
    for number in range(3):
        queue.push(Job("m", [Row(ids, ids, {})], [1.0], loop.create_future()), [0.01], float(number))
    assert lane.wait_s() == pytest.approx(0.04 + 3 * 0.01)
    large.done.set_result(True)
    assert lane.wait_s() == pytest.approx(3 * 0.01), "nobody waits for it any more"


def test_lowered_rows_take_as_much_less_room_as_they_take_time(loop: asyncio.AbstractEventLoop) -> None:
    assert room_share([1.0, 1.0], [4.0, 4.0]) == 0.25
    assert room_share([1.0], [1000.0]) == 1 / 16, "tokens take memory, however cheap they are"
    assert room_share([3.0], [2.0]) == 1.0
    queue = Queue(8192, 5 * TOKENS // 4)
    ids = np.zeros(TOKENS, np.int64)
    for _ in range(3):
        job = Job("m", [Row(ids, ids, {})], [1.0], loop.create_future(), room_share=0.25)
        queue.push(job, [0.01], 0.0)
    room = tokens_counted(TOKENS, 0.25)
    assert queue.occupied("light") == 3 * room == 750
    assert queue.full({"light": TOKENS}) == "light"
    assert queue.full({"light": room}) is None
    queue.take("light")
    assert queue.occupied("light") == 0
