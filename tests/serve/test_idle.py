"""Idle work, the service's own: it runs while no request waits or runs, makes way for one, and takes no room."""

import asyncio
from pathlib import Path

import pytest
from engines import rows_of, started, until

from attenuator.runtime import Input, Model, Row
from attenuator.serve.engine import Engine
from attenuator.serve.scheduling.requests import IDLE, Displaced, Job

LONG = Input("inputs", "good film " * 4000)
SHORT = Input("inputs", "good film")


def start(engine: Engine, model: Model, row: Row, rows: int = 1) -> asyncio.Task[Job]:
    return asyncio.create_task(engine.run(model, [row] * rows, flow=IDLE))


def logits(job: Job) -> list[bytes]:
    return [result.logits.tobytes() for result in job.results if result is not None]


def test_idle_work_waits_for_requests_of_either_lane_and_then_runs(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            long, short = await rows_of(engine, model, LONG, SHORT)
            request = asyncio.create_task(engine.run(model, [long] * 2))
            await until(lambda: engine.running("heavy") == 1)
            idle = start(engine, model, short)
            while not request.done():
                assert not engine.running("light")
                await asyncio.sleep(0.001)
            assert logits(await idle) == logits(await engine.run(model, [short]))

    asyncio.run(scenario())


@pytest.mark.parametrize("request_text", [SHORT, LONG], ids=["short", "long"])
def test_a_request_stops_idle_work_of_either_lane(bundles: dict[str, Path], request_text: Input) -> None:
    """What runs is stopped; what has not begun runs later."""

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            long, row = await rows_of(engine, model, LONG, request_text)
            stopped, later = start(engine, model, long, rows=3), start(engine, model, long)
            await until(lambda: engine.running("heavy") == 1)
            job = await engine.run(model, [row])
            assert len(logits(job)) == 1
            with pytest.raises(Displaced):
                await stopped
            assert len(logits(await later)) == 1

    asyncio.run(scenario())


def test_idle_work_takes_no_room_from_requests(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=20) as (engine, model):
            long, short = await rows_of(engine, model, LONG, SHORT)
            idle = [start(engine, model, long) for _ in range(3)]
            await until(lambda: engine.running("heavy") == 1)
            assert list(engine.waiting()) == []
            forecast = engine.predictor.forecast(model, [len(short.token_ids)], short.knobs)
            assert forecast.queue_s == 0, "a request would stop it"
            jobs = await asyncio.gather(*(engine.run(model, [short]) for _ in range(3)))
            assert all(len(logits(job)) == 1 for job in jobs)
            outcomes = await asyncio.gather(*idle, return_exceptions=True)
            assert [isinstance(each, Displaced) for each in outcomes] == [True, False, False]

    asyncio.run(scenario())
