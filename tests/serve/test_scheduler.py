"""Which rows run next and together, without clock or threads."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from attenuator.runtime import Row
from attenuator.serve.scheduling.queue import BATCH_S, Queue
from attenuator.serve.scheduling.requests import ANYONE, HEAVY_S, Flow, Job


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    event_loop = asyncio.new_event_loop()
    yield event_loop
    event_loop.close()


class Waiting:
    """A queue whose jobs have names."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_queue_tokens: int = 10**9) -> None:
        self.queue = Queue(100, max_queue_tokens)
        self.loop = loop
        self.names: dict[int, str] = {}

    def add(
        self,
        name: str,
        *seconds: float,
        at_s: float = 0.0,
        tokens: int = 10,
        model: str = "m",
        flow: Flow = ANYONE,
        room_share: float = 1.0,
    ) -> Job:
        rows = [Row(np.zeros(tokens, np.int64), np.zeros(tokens, np.int64), {}) for _ in seconds]
        job = Job(model, rows, [], self.loop.create_future(), flow=flow, room_share=room_share)
        self.queue.push(job, seconds, at_s)
        self.names[id(job)] = name
        return job

    def take(self, lane: str = "light") -> list[str]:
        return [self.names[id(entry.job)] for entry in self.queue.take(lane)]


def test_what_waits_runs_together(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    for name in "abc":
        waiting.add(name, 0.001)
    assert waiting.take() == ["a", "b", "c"]
    assert waiting.take() == []
    load = waiting.queue.lanes["light"].backlog
    assert (load.tokens, load.seconds) == (0, pytest.approx(0, abs=1e-12))


def test_token_budget_closes_a_batch_and_a_longer_row_runs_alone(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    for index, tokens in enumerate([60, 40, 1, 500, 99]):
        waiting.add(str(index), 0.001, tokens=tokens, at_s=index)
    assert [waiting.take() for _ in range(4)] == [["0", "1"], ["2"], ["3"], ["4"]]


def test_predicted_time_closes_a_batch(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    for index in range(4):
        waiting.add(str(index), 0.4 * BATCH_S, at_s=index)
    assert [waiting.take(), waiting.take()] == [["0", "1"], ["2", "3"]]


def test_batches_hold_one_model_and_the_oldest_goes_first(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    for index in range(6):
        waiting.add(str(index), 0.001, at_s=index, model="mn"[index % 2])
    assert [waiting.take(), waiting.take()] == [["0", "2", "4"], ["1", "3", "5"]]


def test_heavy_rows_have_a_lane_of_their_own_and_run_alone(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    waiting.add("mixed", 0.001, 2 * HEAVY_S, 2 * HEAVY_S)
    waiting.add("light", 0.001, at_s=1)
    assert waiting.take("light") == ["mixed", "light"]
    assert [waiting.take("heavy"), waiting.take("heavy"), waiting.take("heavy")] == [["mixed"], ["mixed"], []]


def test_dropped_requests_never_start_and_count_no_more(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    kept = waiting.add("kept", 0.001)
    gone = waiting.add("gone", 0.001, 0.001, 2 * HEAVY_S)
    waiting.queue.drop(gone)
    assert waiting.queue.lanes["light"].backlog.tokens == 10
    assert waiting.queue.lanes["heavy"].backlog.tokens == 0
    assert waiting.take() == ["kept"]
    assert waiting.take("heavy") == []
    assert kept.rows
    assert gone.rows == []  # their memory is free at once
    waiting.queue.drop(kept)  # while its row runs
    assert waiting.queue.lanes["light"].backlog.tokens == 0


def test_a_large_request_that_came_later_does_not_catch_up(loop: asyncio.AbstractEventLoop) -> None:
    """It starts where the lane is, not where the lane began: the two take turns."""
    waiting = Waiting(loop)
    row_s = 0.9 * BATCH_S  # no two fit into one batch
    waiting.add("first", *[row_s] * 20)
    assert [waiting.take() for _ in range(8)] == [["first"]] * 8
    waiting.add("second", *[row_s] * 8)
    assert [waiting.take() for _ in range(12)] == [["second"], ["first"]] * 6


def test_requests_that_failed_while_others_of_their_rows_waited_are_forgotten(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    failed = waiting.add("failed", 0.001, 0.001, at_s=7.5)
    assert failed.submitted_s == 7.5
    failed.done.set_result(True)
    assert waiting.take() == []
    load = waiting.queue.lanes["light"].backlog
    assert (load.tokens, load.seconds) == (0, pytest.approx(0, abs=1e-12))


def test_full_lane_is_named_and_an_empty_one_takes_anything(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop, max_queue_tokens=50)
    assert waiting.queue.full({"light": 999}) is None
    for name in "abc":
        waiting.add(name, 0.001)
    assert waiting.queue.full({"light": 10}) is None
    assert waiting.queue.full({"light": 11}) == "light", "as much must stay free"
    assert waiting.queue.full({"heavy": 999}) is None
    with waiting.queue.reserved({"heavy": 12}), waiting.queue.reserved({"heavy": 12}):
        with waiting.queue.reserved({"heavy": 12}):
            assert waiting.queue.full({"light": 1, "heavy": 8}) == "heavy"
        assert waiting.queue.full({"light": 1, "heavy": 8}) is None
    assert waiting.queue.full({"heavy": 999}) is None


def test_a_request_larger_than_the_queue_leaves_room_until_it_is_done(loop: asyncio.AbstractEventLoop) -> None:
    """It takes a quarter, whether it is being tokenized or waits, and less once fewer of its rows wait."""
    waiting = Waiting(loop, max_queue_tokens=100)
    with waiting.queue.reserved({"light": 9999}):
        assert waiting.queue.occupied("light") == 25
    waiting.add("large", *[0.9 * BATCH_S] * 6)
    taken = [waiting.queue.occupied("light")]
    while waiting.take():
        taken.append(waiting.queue.occupied("light"))
    assert taken == [25, 25, 25, 25, 20, 10, 0]
    jobs = [waiting.add(name, *[0.9 * BATCH_S] * 99) for name in "abc"]
    assert waiting.queue.full({"light": 9999}) == "light", "large ones fill three quarters"
    assert waiting.queue.full({"light": 12}) is None
    waiting.queue.drop(jobs[0])
    assert waiting.queue.full({"light": 9999}) is None


def test_keys_that_send_large_requests_leave_room_for_others(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop, max_queue_tokens=100)
    accepted = []
    for key in ("flood", "flood", "flood", "second", "second", "third"):
        if waiting.queue.full({"light": 9999}, key) is None:
            waiting.add(key, *[0.001] * 99, flow=Flow(key))
            accepted.append(key)
    assert accepted == ["flood", "flood", "second"]
    assert waiting.queue.full({"light": 10}, "third") is None
    assert waiting.queue.fullness("third") == 0


def test_a_key_is_full_where_it_would_be_refused(loop: asyncio.AbstractEventLoop) -> None:
    """It may take half of what the others leave, so each of its tokens and requests counts twice."""
    waiting = Waiting(loop, max_queue_tokens=100)
    waiting.add("a", 0.001, 0.001, flow=Flow("a"))
    assert [waiting.queue.fullness(key) for key in ("", "a", "b")] == [0.2, 0.4, 0.0]
    waiting.add("b", 0.001, 0.001, flow=Flow("b"))
    assert [waiting.queue.fullness(key) for key in ("", "a", "b")] == [0.4, 0.5, 0.5]
    queue = Queue(100, 100, max_requests=10)
    for key in "aaabbb":
        queue.enter(key)
    assert queue.fullness("") == 0.5, "all but the one that asks"
    assert queue.fullness("a") == pytest.approx(2 * 2 / (10 - 3))


def test_a_lowered_row_does_not_overtake_those_shorter_than_what_was_asked_for(loop: asyncio.AbstractEventLoop) -> None:
    waiting = Waiting(loop)
    waiting.add("lowered", 0.004, room_share=0.25)
    waiting.add("plain", 0.008)
    assert waiting.take() == ["plain", "lowered"]


@pytest.mark.parametrize("seed", range(5))
def test_counts_stay_right_whatever_happens(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    draw = random.Random(seed)
    waiting = Waiting(loop)
    jobs: list[Job] = []
    for step in range(300):
        action = draw.random()
        if action < 0.5:
            lengths = [draw.choice([0.001, 0.02, 1.0]) for _ in range(draw.randint(1, 6))]
            jobs.append(
                waiting.add(str(step), *lengths, at_s=step, tokens=draw.randint(1, 120), model=draw.choice("mn"))
            )
        elif action < 0.6 and jobs:
            waiting.queue.drop(draw.choice(jobs))
        else:
            waiting.queue.take(draw.choice(["light", "heavy"]))
    for lane in ("light", "heavy"):
        while waiting.queue.take(lane):
            pass
        load = waiting.queue.lanes[lane].backlog
        assert load.tokens == 0
        assert load.seconds == pytest.approx(0, abs=1e-9)


def test_a_row_is_taken_in_a_few_calls_however_many_wait(loop: asyncio.AbstractEventLoop) -> None:
    """Hundreds of tiny rows are one batch, and the event loop forms it."""
    calls = []
    for requests in (2, 40):
        waiting = Waiting(loop)
        for number in range(requests):
            waiting.add(str(number), *[0.0005] * 256, tokens=1)
        counted = Counter[str]()
        sys.setprofile(lambda frame, event, argument, counted=counted: counted.update([event]))
        try:
            batch = waiting.queue.take("light")
        finally:
            sys.setprofile(None)
        assert len(batch) > 90
        calls.append(counted["call"] / len(batch))
    assert max(calls) < 22
    assert calls[1] < 1.2 * calls[0]
