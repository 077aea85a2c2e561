"""Where a batch runs: on the event loop for one short request alone, in a lane's thread for all others."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from engines import started

from attenuator.runtime import Cancellation, Model, Row, RowResult
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app
from attenuator.serve.scheduling.lanes import INLINE_S
from attenuator.serve.settings import ServeSettings

SHORT = {"inputs": "good film", "num_hashes": 8, "return_logits": True}
LONG = SHORT | {"inputs": "good film " * 400}


def test_a_short_request_alone_takes_no_thread_and_others_do(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    run = Model.run

    def run_noting_thread(
        model: Model, rows: Sequence[Row], cancellation: Cancellation | None = None
    ) -> list[RowResult]:
        ran.append((threading.current_thread().name, len(rows)))
        return run(model, rows, cancellation)

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            monkeypatch.setattr(Model, "run", run_noting_thread)
            transport = httpx.ASGITransport(create_app(engine, ServeSettings(), KeyRing(None, None)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

                async def ask(body: dict[str, object]) -> list[object]:
                    answer = await client.post("/v1/classify", json=body)
                    assert answer.status_code == 200, answer.text
                    predictions: list[object] = answer.json()["predictions"]
                    return predictions

                latency = engine.latencies[model]
                [short] = latency.row_times([4], model.knobs.check({"num_hashes": 8}))
                while latency.batch_s({short: 1}) > INLINE_S:  # on a busy machine it has learned a longer time
                    latency.learn([short], INLINE_S / 4)
                alone = await ask(SHORT)
                assert ran == [(threading.main_thread().name, 1)]
                ran.clear()
                together = await asyncio.gather(*(ask(SHORT) for _ in range(4)))
                assert together == [alone] * 4, "the same bits wherever it ran"
                assert sum(rows for _, rows in ran) == 4
                assert {name for name, _ in ran} == {"compute-light_0"}
                ran.clear()
                await ask(LONG)
                assert [name.partition("-")[0] for name, _ in ran] == ["compute"], "a long text"
                ran.clear()
                while latency.batch_s({short: 1}) <= INLINE_S:
                    latency.learn([short], 16 * INLINE_S)
                assert await ask(SHORT) == alone
                assert [name for name, _ in ran] == ["compute-light_0"], "a short text that takes longer here"

    asyncio.run(scenario())


def test_a_run_on_the_event_loop_that_fails_is_answered_as_one_in_a_lane_is(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def fail(model: Model, rows: Sequence[Row], cancellation: Cancellation | None = None) -> list[RowResult]:
        threads.append(threading.current_thread().name)
        raise MemoryError

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            transport = httpx.ASGITransport(create_app(engine, ServeSettings(), KeyRing(None, None)))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                latency = engine.latencies[model]
                [short] = latency.row_times([4], model.knobs.check({"num_hashes": 8}))
                while latency.batch_s({short: 1}) > INLINE_S:
                    latency.learn([short], INLINE_S / 4)
                with monkeypatch.context() as patch:
                    patch.setattr(Model, "run", fail)
                    answer = await client.post("/v1/classify", json=SHORT)
                assert threads == [threading.main_thread().name]
                assert (answer.status_code, answer.json()["error_type"]) == (500, "engine_error")
                assert (await client.post("/v1/classify", json=SHORT)).status_code == 200
                assert engine.requests == 0

    asyncio.run(scenario())
