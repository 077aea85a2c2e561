"""Seeds whose random draws are kept, and what a new one costs: forecasts, lanes and the limit on cost see it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from engines import rows_of, service, started

from attenuator.calibration.times import RowTime
from attenuator.ops.cost import Drawn
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Input, Model, Row
from attenuator.serve.scheduling.times import KnownSeeds

TEXT = "a very good film and not a bad plot"
FEW, MANY = {"num_features": 4}, {"num_features": 16}


def stand_in(revision: str) -> Model:
    """A model that draws as many bytes as it has features, each for ten multiply-adds."""

    def drawn(knobs: Knobs) -> Drawn:
        return Drawn(10.0 * knobs["num_features"], int(knobs["num_features"]))

    return cast(Model, SimpleNamespace(manifest=SimpleNamespace(revision=revision), drawn=drawn))


def test_what_is_kept_is_not_drawn_again() -> None:
    seeds, model, other = KnownSeeds(most_bytes=40), stand_in("a"), stand_in("b")
    assert seeds.missing(model, 1, FEW) == 40
    seeds.used(model, 1, FEW)
    assert seeds.missing(model, 1, FEW) == 0
    assert seeds.missing(model, 1, MANY) == 160, "more of a stream are drawn from its beginning"
    assert (seeds.missing(model, 2, FEW), seeds.missing(other, 1, FEW)) == (40, 40)
    seeds.used(model, 1, MANY)
    seeds.used(model, 2, MANY)
    assert seeds.missing(model, 1, FEW) == 0, "it is part of the more that are kept"
    seeds.used(model, 1, FEW)
    seeds.used(other, 3, MANY)
    kept = {
        (each.manifest.revision, seed): not seeds.missing(each, seed, MANY)
        for each, seed in [(model, 1), (model, 2), (other, 3)]
    }
    assert kept == {("a", 1): True, ("a", 2): False, ("b", 3): True}, "the one that was used least recently went"


def test_a_new_seed_is_forecast_and_scheduled_by_what_it_draws(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            [row] = await rows_of(engine, model, Input("inputs", TEXT))
            second = 1 / (
                engine.latencies[model].with_draws(RowTime(0.0, 0.0), 1.0).alone_s
            )  # multiply-adds of a second
            monkeypatch.setattr(Model, "drawn", lambda model, knobs: Drawn(second, 1))
            again, new = Row(row.token_ids, row.type_ids, row.knobs, 1), Row(row.token_ids, row.type_ids, row.knobs, 2)
            await engine.run(model, [again])
            await asyncio.sleep(0)  # what a batch used is noted behind its answers
            times = engine._learned.times(model, [again, new, new, again])
            assert [time.alone_s > 1 for time in times] == [False, True, False, False], "once for all rows of a request"

            def forecast(*seeds: int, longest: int = len(row.token_ids)) -> float:
                with_knobs, tokens = [(seed, row.knobs) for seed in seeds], len(row.token_ids)
                return engine.admission.forecast(model, [tokens, tokens, longest], row.knobs, seeds=with_knobs).run_s

            assert forecast(1) == forecast()
            assert forecast(2) > 0.3, "a second, corrected by the run that had nothing to draw after all"
            assert forecast(2, longest=len(row.token_ids) + 1) == pytest.approx(forecast(2), rel=0.2), "once for all"
            assert forecast(2, 3) - forecast(2) == pytest.approx(forecast(2) - forecast(1), rel=0.2)

    asyncio.run(scenario())


def test_the_limit_on_cost_counts_what_is_drawn_for_a_caller_s_seed(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, so that an answer does not depend on those before it; the service's own seed is free."""
    monkeypatch.setattr(Model, "drawn", lambda model, knobs: Drawn(2e9 * (knobs["num_hashes"] > 16), 1))

    async def scenario() -> None:
        async with (
            service(bundles["yoso"], max_cost=1.0) as (_, transport),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):

            async def ask(**fields: Any) -> httpx.Response:
                return await client.post("/v1/classify", json={"inputs": TEXT, **fields})

            for refused in ({"seed": 5}, {"seed": 5}, {"seed": None}):
                answer = await ask(num_hashes=32, **refused)
                assert answer.status_code == 422
                assert "the predicted cost is 2 billion multiply-adds" in answer.json()["error"]
                assert "the most accurate num_hashes 0" in answer.json()["error"]  # exact, which draws nothing
            for fields in ({"num_hashes": 16, "seed": 5}, {"num_hashes": 32}, {"num_hashes": 32, "seed": 0}):
                assert (await ask(**fields)).status_code == 200

    asyncio.run(scenario())
