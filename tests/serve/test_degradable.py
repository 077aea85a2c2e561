"""Brownout over HTTP: who is lowered, what the answer says, and that it is the answer of those knobs."""

import asyncio
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import rows_of, service, started, until

from attenuator.clients import AsyncClient
from attenuator.runtime import Cancellation, Input, Model, Row, RowResult
from attenuator.serve.engine import Engine
from attenuator.serve.jobs import ANYONE, Job

REVIEWS = Path(__file__).resolve().parents[2] / "examples" / "bundles" / "reviews"
TEXT = "a very good film and not a bad plot"
ASKED = {"inputs": [TEXT, "bad"], "num_hashes": 64, "seed": 5, "return_logits": True}
BY_DEFAULT = {"inputs": TEXT, "seed": 5}
FLOOR = {"num_hashes": 8}


def load(engine: Engine, share: float) -> None:
    """As if newcomers had to wait for a share of the target."""
    engine.brownout.level(ANYONE).observe(share * 1e3, 0.0, time.monotonic())


def test_a_busy_service_lowers_those_that_allow_it_and_nobody_else(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with (
            service(bundles["yoso"], brownout_to="num_hashes=8,keep=0.5") as (engine, transport),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):

            async def answered(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
                answer = await client.post("/v1/classify", json=body | fields)
                assert answer.status_code == 200, answer.text
                return dict(answer.json())

            idle = await answered(ASKED, degradable_to=FLOOR)
            assert (idle["knobs"], idle["chosen_by"]) == ({"num_hashes": 64}, "caller")
            load(engine, 0.75)
            lowered = await answered(ASKED, degradable_to=FLOOR)
            assert 8 < lowered["knobs"]["num_hashes"] < 64
            assert (lowered["chosen_by"], lowered["requested"]) == ("brownout", {"num_hashes": 64})
            load(engine, 1.5)
            metrics = (await client.get("/metrics")).text
            assert float(re.search(r"^attenuator_brownout_level ([\d.]+)$", metrics, re.MULTILINE)[1]) > 0.99
            floor = await answered(ASKED, degradable_to=FLOOR)
            assert (floor["knobs"], floor["chosen_by"]) == (FLOOR, "brownout")
            plain = await answered(ASKED)
            assert (plain["knobs"], plain["chosen_by"]) == ({"num_hashes": 64}, "caller")
            policy = await answered(BY_DEFAULT)
            assert (policy["knobs"], policy["chosen_by"], policy["requested"]) == (FLOOR, "brownout", {})
            excepted = await answered(BY_DEFAULT, degradable_to={})
            assert (excepted["knobs"], excepted["chosen_by"]) == ({"num_hashes": 32}, "default")
            for each in (lowered, floor):
                same = await answered(ASKED, **each["knobs"])
                assert each["predictions"] == same["predictions"], "bit for bit that of a request with those knobs"
                assert each["predictions"] != plain["predictions"]

    asyncio.run(scenario())


def test_without_a_policy_a_request_that_says_nothing_is_never_lowered(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with service(bundles["yoso"]) as (engine, transport):
            load(engine, 2.0)
            async with AsyncClient("http://service", transport=transport) as client:
                answer = await client.classify(TEXT)
                assert (answer.chosen_by, answer.knobs) == ("default", {"num_hashes": 32})
                answer = await client.classify(TEXT, degradable_to=FLOOR)
                assert (answer.chosen_by, answer.knobs, answer.requested) == ("brownout", FLOOR, {})

    asyncio.run(scenario())


def test_those_that_wait_are_lowered_when_the_level_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once their turn comes, to where a newcomer would be; an explained answer keeps the setting of its draws."""
    released, run = threading.Event(), Model.run

    def run_once_released(
        model: Model, rows: Sequence[Row], cancellation: Cancellation | None = None
    ) -> list[RowResult]:
        released.wait(20)
        return run(model, rows, cancellation)

    async def scenario() -> None:
        async with (
            service(REVIEWS) as (engine, transport),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):

            def ask(**fields: Any) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.post("/v1/classify", json=ASKED | fields))

            async with engine.admitted():  # so that none is alone, which the event loop would run
                monkeypatch.setattr(Model, "run", run_once_released)
                begun = ask(degradable_to=FLOOR)
                await until(lambda: engine.running("light") == 2)
                asked = [ask(degradable_to=FLOOR), ask(), ask(degradable_to=FLOOR, explain=True)]
                await until(lambda: len({entry.job for _, entry in engine.waiting()}) == 3)
                load(engine, 1.5)
                released.set()
                first, lowered, plain, explained = [(await each).json() for each in (begun, *asked)]
                by_hand = (await ask(**FLOOR)).json()
        for answer in (first, plain, explained):
            assert (answer["knobs"], answer["chosen_by"]) == ({"num_hashes": 64}, "caller")
        assert (lowered["knobs"], lowered["chosen_by"]) == (FLOOR, "brownout")
        assert lowered["requested"] == {"num_hashes": 64}
        assert lowered["predictions"] == by_hand["predictions"], "bit for bit that of a request with those knobs"
        assert lowered["expected_agreement"] == by_hand["expected_agreement"]
        assert lowered["predictions"] != plain["predictions"]

    asyncio.run(scenario())


def test_a_request_is_lowered_while_it_waits_only_if_that_is_cheaper_and_none_of_it_has_run(
    bundles: dict[str, Path],
) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], brownout_target_ms=1e6) as (engine, model):
            rows = await rows_of(engine, model, *[Input("inputs", TEXT * 20)] * 3)

            def job(hashes: int, floors: dict[str, int], started_s: float | None = None) -> Job:
                knobs = {"num_hashes": hashes}
                own = [Row(row.token_ids, row.type_ids, knobs) for row in rows]
                done = asyncio.get_running_loop().create_future()
                return Job(model, own, [], done, asked={"num_hashes": 64}, floors=floors, started_s=started_s)

            def lower(each: Job) -> Sequence[float] | None:
                return engine.lowering.waiting(time.monotonic())(each)

            assert lower(job(64, FLOOR)) is None, "without load"
            load(engine, 0.75)
            some = job(64, FLOOR)
            seconds = lower(some)
            assert seconds is not None
            assert len(seconds) == len(some.times) == 3
            assert {row.knobs["num_hashes"] for row in some.rows} <= set(range(9, 64))
            assert 0 < some.room_share < 1
            assert lower(some) is None, "it is where a newcomer would be"
            assert lower(job(64, {})) is None
            assert lower(job(64, FLOOR, started_s=1.0)) is None
            assert lower(job(8, FLOOR)) is None, "never raised"
            load(engine, 1.5)
            more = lower(some)
            assert more is not None
            assert sum(more) < sum(seconds)
            assert {row.knobs["num_hashes"] for row in some.rows} == {8}

    asyncio.run(scenario())
