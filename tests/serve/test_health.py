"""Probes tell the truth: a lane that died, a batch that hangs; and what breaks is mended without a restart."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import tiny
from engines import rows_of, until
from service import Service

from attenuator.errors import BundleError, EngineError
from attenuator.runtime import Cancellation, Input, Model, Row, RowResult, load
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app
from attenuator.serve.engine import Engine
from attenuator.serve.models import catalog
from attenuator.serve.scheduling.lanes import HANG_FACTOR, Running
from attenuator.serve.scheduling.requests import Entry, Job
from attenuator.serve.settings import ServeSettings


@asynccontextmanager
async def started(folder: Path, **settings: Any) -> AsyncIterator[tuple[Engine, Model, httpx.AsyncClient]]:
    """An engine, its model, and a client of its application."""
    own = ServeSettings.model_validate({"threads": 1, **settings})
    engine = Engine(own)
    transport = httpx.ASGITransport(create_app(engine, own, KeyRing(None, None)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/health/startup", "/health/ready", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 503
        await engine.start([folder])
        try:
            yield engine, engine.model(None), client
        finally:
            await engine.stop()


def row(model: Model, token: int = 5) -> Row:
    ids = np.full(20, token)
    return Row(ids, ids * 0, model.knobs.defaults())


def test_probes_of_a_service_that_works(service: Service) -> None:
    get = service.client.get
    assert get("/health/startup").json() == {"status": "ready"}
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get("/health/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("lane", ["light", "heavy"])
def test_a_lane_that_died_is_not_ready_and_starts_again(bundles: dict[str, Path], lane: str) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model, client):
            assert (await client.get("/health/ready")).status_code == 200
            engine._lanes._tasks[lane].cancel()
            await until(lambda: engine.fault() is not None)
            answer = await client.get("/health/ready")
            assert answer.status_code == 503
            reason = f"the {lane} lane has stopped and is about to start again"
            assert answer.json() == {"status": "failing", "reason": reason}
            answer = await client.get("/v2/health/ready")
            assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": reason})
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/health/startup")).status_code == 200
            waiting = asyncio.create_task(engine.run(model, [row(model)]))
            await until(lambda: engine.fault() is None)
            assert (await client.get("/health/ready")).json() == {"status": "ready"}
            await waiting
            assert f'attenuator_lane_restarts_total{{lane="{lane}"}} 1.0' in (await client.get("/metrics")).text

    asyncio.run(scenario())


def test_a_batch_in_a_lane_that_dies_is_answered(bundles: dict[str, Path]) -> None:
    """Nobody else would ever answer it."""

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model, _):
            ids = np.ones(8000, dtype=np.int64)
            running = asyncio.create_task(engine.run(model, [Row(ids, ids * 0, model.knobs.exact())] * 4))
            await until(lambda: engine.running("heavy") == 1)
            engine._lanes._tasks["heavy"].cancel()
            with pytest.raises(EngineError, match="the service failed to run this request"):
                await running

    asyncio.run(scenario())


def test_a_batch_that_hangs_is_not_ready_until_it_ends(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    run = Model.run

    def run_held_up(model: Model, rows: Sequence[Row], cancellation: Cancellation | None = None) -> list[RowResult]:
        may_end.wait(20)
        return run(model, rows, cancellation)

    async def scenario() -> None:
        async with started(bundles["yoso"], hang_ms=1) as (engine, model, client):
            monkeypatch.setattr(Model, "run", run_held_up)
            hanging = asyncio.create_task(engine.run(model, [row(model)]))
            await until(lambda: engine.fault() is not None)
            answer = await client.get("/health/ready")
            assert answer.status_code == 503
            assert answer.json()["reason"].startswith("a batch of model 'yoso' in the light lane has been running for")
            assert "attenuator_ready 0.0" in (await client.get("/metrics")).text
            may_end.set()
            await hanging
            assert (await client.get("/health/ready")).status_code == 200

    asyncio.run(scenario())


def test_a_batch_hangs_only_far_beyond_its_prediction() -> None:
    for running_s, hangs in ((HANG_FACTOR * 3 + 9.9, False), (HANG_FACTOR * 3 + 10.1, True)):
        batch = [Entry(cast(Job, None), 0, 10, seconds) for seconds in (1.0, 2.0)]
        assert Running(batch, Cancellation(), 100.0, 0.0).hangs(100.0 + running_s, hang_s=10) == hangs


def test_a_broken_session_is_made_again_and_requests_are_answered(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session of another model, which has no such inputs, fails on every batch."""
    monkeypatch.setattr(catalog, "REOPEN_INTERVAL_S", 0.0)

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model, client):
            body = {"inputs": "good film", "num_hashes": 8, "return_logits": True}
            before = (await client.post("/v1/classify", json=body)).json()["predictions"]
            model._graphs = load(bundles["softmax"], check=False)._graphs
            answer = await client.post("/v1/classify", json=body)
            assert (answer.status_code, answer.json()["error_type"]) == (500, "engine_error")
            await until(lambda: "made the session of model 'yoso' again" in caplog.text)
            assert (await client.post("/v1/classify", json=body)).json()["predictions"] == before
            metrics = (await client.get("/metrics")).text
            assert 'attenuator_session_restarts_total{model="yoso"} 1.0' in metrics
            assert 'attenuator_batch_failures_total{lane="light",model="yoso"} 1.0' in metrics

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())


def test_sessions_are_not_made_again_all_the_time(bundles: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model, _):
            for _ in range(3):
                with pytest.raises(EngineError):
                    await engine.run(model, [row(model, token=10**6)])
                await until(lambda: not engine.catalog._reopening)
            await engine.run(model, [row(model)])

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert caplog.text.count("made the session") == 1


def test_one_request_that_fails_leaves_its_batch_mates_their_answers(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model, _):
            rows = [row(model), row(model, token=10**6), row(model)]
            ended = await asyncio.gather(*(engine.run(model, [one]) for one in rows), return_exceptions=True)
            assert [isinstance(one, EngineError) for one in ended] == [False, True, False]
            assert await rows_of(engine, model, Input("inputs", "good"))

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert "failed on a batch" not in caplog.text, "the lane itself met no error"


def test_a_session_is_not_made_of_another_revision(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundles["yoso"], tmp_path / "bundle"))
    model = load(folder, check=False)
    expected = model.run([row(model)])[0].logits.tobytes()
    model.reopen()
    shutil.rmtree(folder)
    with pytest.raises(BundleError):
        model.reopen()
    shutil.copytree(tiny.write(tmp_path / "other", "yoso", seed=2), folder)
    with pytest.raises(BundleError, match=r"holds revision \w{12} by now, must hold"):
        model.reopen()
    assert model.run([row(model)])[0].logits.tobytes() == expected
