"""API keys and classes share a real engine: turns, least shares, room in the queue; and the fields that say so."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from engines import planned, rows_of, started, until
from service import GOOD, Service

from attenuator.errors import Overloaded
from attenuator.runtime import Input, Model, Row
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.plan import level_of
from attenuator.serve.engine import Engine
from attenuator.serve.events import BatchRun
from attenuator.serve.scheduling.queue import BATCH_CLASS_SHARE
from attenuator.serve.scheduling.requests import Flow, Job

FLOOD, OTHER, LATER = Flow("flood"), Flow("other"), Flow("later", "batch")
KEYS: list[dict[str, Any]] = [
    {"name": "search", "key": "search-key"},
    {"name": "nightly", "key": "nightly-key", "priority": "batch", "weight": 2},
]


def words(count: int) -> Input:
    return Input("inputs", "good film " * count)


def ask(engine: Engine, model: Model, rows: list[Row], flow: Flow) -> asyncio.Task[Job]:
    return asyncio.create_task(engine.run(model, rows, flow=flow))


def keys_of_batches(engine: Engine) -> list[set[str]]:
    """The keys in each batch of the light lane from now on, as it ends."""
    keys: list[set[str]] = []

    def note(run: BatchRun) -> None:
        if run.lane == "light":
            keys.append({key for key, _ in run.shares})

    engine.listeners.batch_ran.append(note)
    return keys


def done(tasks: list[asyncio.Task[Job]]) -> int:
    return sum(task.done() for task in tasks)


def test_single_requests_run_with_the_next_batch_whatever_another_key_sends(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=10**7) as (engine, model):
            medium, short = await rows_of(engine, model, words(200), words(1))
            alone = await engine.run(model, [short], flow=OTHER)
            ran = keys_of_batches(engine)
            flood = [ask(engine, model, [medium] * 256, FLOOD) for _ in range(4)]
            flood += [ask(engine, model, [medium], FLOOD) for _ in range(200)]
            await until(lambda: len(ran) > 1)
            for _ in range(10):
                before = len(ran)
                job = await engine.run(model, [short], flow=OTHER)
                await asyncio.sleep(0)  # a batch is told of behind its answers
                assert any("other" in keys for keys in ran[before : before + 2]), "the batch under way, or the next"
                assert job.results[0].logits.tobytes() == alone.results[0].logits.tobytes()
            assert done(flood) < len(flood), "there was no flood"
            for task in flood:
                task.cancel()

    asyncio.run(scenario())


def test_batch_requests_keep_their_least_share_while_interactive_ones_saturate(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=10**7) as (engine, model):
            [row] = await rows_of(engine, model, words(100))
            later = ask(engine, model, [row] * 20, LATER)
            interactive = [ask(engine, model, [row], Flow(f"k{index % 3}")) for index in range(500)]
            await later
            finished = done(interactive)
            least = BATCH_CLASS_SHARE / (1 - BATCH_CLASS_SHARE)
            assert 0.75 * least * finished <= 20, "by rows, which are all alike"
            assert 0 < finished < len(interactive), "nothing else ran, or nothing else waited"
            for task in interactive:
                task.cancel()

    asyncio.run(scenario())


def test_a_key_that_floods_fills_half_of_the_queue_and_others_find_room(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=40_500) as (engine, model):
            [row] = await rows_of(engine, model, words(4000))
            running = ask(engine, model, [row], FLOOD)
            await until(lambda: engine.running("heavy") == 1)
            waiting = [ask(engine, model, [row], FLOOD) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match=r"16\d\d\d of the API key 'flood' among them; try again in \d+ s"):
                await engine.run(model, [row], flow=FLOOD)
            text = Input("inputs", "good film " * 4000)
            with pytest.raises(Overloaded):
                await engine.encode(model, [text], planned(row.knobs), truncate=False, flow=FLOOD)
            waiting += [ask(engine, model, [row], flow) for flow in (OTHER, LATER)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            with pytest.raises(Overloaded):
                await engine.run(model, [row], flow=OTHER)
            for task in [running, *waiting]:
                task.cancel()

    asyncio.run(scenario())


def test_a_key_that_floods_takes_half_of_the_requests_in_progress(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_requests=6) as (engine, _), AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(engine.admitted(key="flood"))
            with pytest.raises(Overloaded, match="3 requests of the API key 'flood' are in progress"):
                engine.check_open(key="flood")
            for key in ("other", "other", "third"):
                await stack.enter_async_context(engine.admitted(key=key))
            with pytest.raises(Overloaded, match="6 requests are in progress"):
                engine.check_open(key="fourth")

    asyncio.run(scenario())


def test_a_key_that_floods_lowers_neither_other_keys_nor_work_that_can_wait(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=10**7) as (engine, model):
            [row] = await rows_of(engine, model, words(4000))
            engine.brownout.target_s = 20 * engine.admission.forecast(model, [len(row.token_ids)], row.knobs).run_s
            flood = [ask(engine, model, [row], flow) for flow in [FLOOD] * 100 + [LATER] * 100]
            await until(lambda: engine.running("heavy") == 1)
            knobs, work = {"num_hashes": 512}, Work(model, [8000])
            levels = [level_of(engine.load(work, flow, 0.0), knobs) for flow in (FLOOD, LATER, OTHER)]
            assert levels[0] > 0
            assert levels[1:] == [0, 0]
            for task in flood:
                task.cancel()

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def one(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with two keys, one of them for work that can wait."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps(KEYS))
    started = Service([bundles["yoso"]], "--threads", "1", "--api-keys", str(file))
    yield started
    assert started.stop() == 0


def test_the_class_is_the_request_s_within_its_key_s(one: Service) -> None:
    def classify(key: str, **fields: object) -> Any:
        headers = {"Authorization": f"Bearer {key}-key"}
        return one.client.post("/v1/classify", json={**GOOD, **fields}, headers=headers)

    answers = [
        classify("search"),
        classify("search", priority="interactive"),
        classify("search", priority="batch"),
        classify("nightly"),
        classify("nightly", priority="batch"),
    ]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len({json.dumps(answer.json()["predictions"]) for answer in answers}) == 1
    refused = classify("nightly", priority="interactive")
    assert (refused.status_code, refused.json()["param"], refused.json()["allowed"]) == (422, "priority", '"batch"')
    assert "must be \"batch\" for the API key 'nightly'" in refused.json()["error"]
    for wrong in ("idle", "", 1, None, True):
        refused = classify("search", priority=wrong)
        assert (refused.status_code, refused.json()["param"]) == (422, "priority")
        assert 'must be "interactive", or "batch" for work that can wait' in refused.json()["error"]
    metrics = one.client.get("/metrics").text
    for place in (
        'key="search",priority="interactive"',
        'key="search",priority="batch"',
        'key="nightly",priority="batch"',
    ):
        assert f"attenuator_key_compute_seconds_total{{{place}}}" in metrics
