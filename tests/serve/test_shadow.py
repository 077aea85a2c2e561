"""Answered texts run again at the exact value: which, when, and what the service says about it."""

import asyncio
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random

import calibrations
import httpx
import numpy as np
import pytest
import tiny
from engines import until
from service import Service

from attenuator.runtime import Input, Model, Row, RowResult, load
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app, observe
from attenuator.serve.engine import Engine
from attenuator.serve.observe import shadow as module
from attenuator.serve.observe.metrics import Metrics
from attenuator.serve.observe.shadow import Shadow
from attenuator.serve.settings import ServeSettings

BUNDLES = Path(__file__).resolve().parents[2] / "examples" / "bundles"
CHEAP = {"num_hashes": 1}


def row(tokens: int = 10, **knobs: int) -> Row:
    ids = np.ones(tokens, np.int64)
    return Row(ids, ids * 0, CHEAP | knobs)


RESULT = RowResult(np.array([1.0, 0.0], np.float32))


def shadow(share: float, **random: Random) -> tuple[Shadow, Metrics]:
    metrics = Metrics()
    return Shadow(share, asyncio.Event(), metrics, lambda model: True, exact_s, **random), metrics


def exact_s(model: Model, tokens: int) -> float:
    return tokens / 1000


def dropped(metrics: Metrics, reason: str, model: str = "yoso") -> float:
    labels = {"model": model, "reason": reason}
    return metrics.registry.get_sample_value("attenuator_shadow_dropped_texts_total", labels) or 0


def test_each_text_is_drawn_by_lot_and_exact_answers_never(models: dict[str, Model]) -> None:
    one, _ = shadow(0.25, random=Random(3))
    one.consider(models["yoso"], [row()] * 1000, [RESULT] * 1000)
    assert 200 < one.waiting < 300
    all_of_them, _ = shadow(1)
    all_of_them.consider(models["yoso"], [row(num_hashes=0)] * 5 + [row()], [RESULT] * 6)
    all_of_them.consider(models["softmax"], [Row(row().token_ids, row().type_ids, {})], [RESULT])
    assert all_of_them.waiting == 1
    none, _ = shadow(0)
    none.consider(models["yoso"], [row()] * 1000, [RESULT] * 1000)
    assert none.waiting == 0


def test_what_waits_is_bounded_in_texts_and_tokens(models: dict[str, Model]) -> None:
    short, metrics = shadow(1)
    short.consider(models["yoso"], [row()] * (module.MAX_TEXTS + 3), [RESULT] * (module.MAX_TEXTS + 3))
    assert (short.waiting, dropped(metrics, "full")) == (module.MAX_TEXTS, 3)
    long, metrics = shadow(1)
    count = module.MAX_TOKENS // 8000
    long.consider(models["yoso"], [row(8000)] * (count + 2), [RESULT] * (count + 2))
    assert (long.waiting, dropped(metrics, "full")) == (count, 2)
    long.consider(models["yoso"], [row()] * 500, [RESULT] * 500)
    assert (long.waiting, dropped(metrics, "full")) == (count + 499, 3), "those that need the longest pause go first"


def run(folder: Path, scenario: Callable[[Engine, Metrics, Shadow, Model], object]) -> None:
    """Runs a scenario beside an engine whose every answered text is drawn."""

    async def started() -> None:
        settings = ServeSettings(threads=1)
        engine = Engine(settings)
        metrics = observe(engine, settings)
        shadow = Shadow(1, engine.idle, metrics, engine.catalog.serving, engine.admission.exact_s)
        shadow.listen(engine.listeners)
        await engine.start([folder])
        try:
            async with asyncio.timeout(60):
                await scenario(engine, metrics, shadow, engine.model(None))  # type: ignore[misc]
        finally:
            await engine.stop()

    asyncio.run(started())


def test_a_request_stops_the_text_that_runs(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits again, behind others, until it was interrupted too often."""
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    monkeypatch.setattr(module, "IDLE_FACTOR", 0)
    begun: list[int] = []
    run_model = Model.run

    def noting(model: Model, rows: list[Row], cancellation: object = None) -> list[RowResult]:
        begun.append(len(rows[0].token_ids))
        return run_model(model, rows, cancellation)  # type: ignore[arg-type]

    async def scenario(engine: Engine, metrics: Metrics, shadow: Shadow, model: Model) -> None:
        monkeypatch.setattr(Model, "run", noting)
        long = row(model.manifest.max_tokens)
        shadow.consider(model, [long], [RESULT])
        for times in (1, 2):
            await until(lambda times=times: len(begun) == times)  # type: ignore[misc]
            async with engine.admitted():
                await until(lambda: shadow._running is None)
                assert shadow.waiting == (1 if times == 1 else 0)
                await asyncio.sleep(0.01)
                assert len(begun) == times, "nothing runs while a request is in progress"
        assert dropped(metrics, "interrupted") == 1
        assert begun == [model.manifest.max_tokens] * 2

    run(bundles["yoso"], scenario)


def test_a_long_text_waits_for_a_long_pause(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long as it is predicted to take; short ones behind it do not wait for it."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    one, _ = shadow(1)
    long, short = row(3000), row(1)
    one.consider(models["yoso"], [long, short], [RESULT] * 2)
    order = []
    for passed_s in (0, 0.03, 29, 0.96, 0.02):
        now[0] += passed_s
        ready = one._next()
        order.append(ready and ready.row)
    assert order == [None, short, None, None, long]
    one.consider(models["yoso"], [long], [RESULT])
    one.pause()
    now[0] += 29
    assert one._next() is None, "a request came: the pause begins anew"
    now[0] += 30
    assert one._next() is not None


def test_a_failure_is_counted_and_the_next_text_runs(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(engine: Engine, metrics: Metrics, shadow: Shadow, model: Model) -> None:
        outside = row()
        outside.token_ids[:] = 10**6
        shadow.consider(model, [outside, row()], [RESULT] * 2)
        await until(lambda: compared(metrics) == 1)
        assert dropped(metrics, "failed") == 1

    def compared(metrics: Metrics) -> float:
        counts = [each for each in metrics.registry.collect() if each.name == "attenuator_shadow_texts"]
        return sum(sample.value for each in counts for sample in each.samples)

    run(bundles["yoso"], scenario)
    assert "failed on a text that ran again" in caplog.text


def test_texts_do_not_keep_an_unloaded_model(bundles: dict[str, Path]) -> None:
    async def scenario(engine: Engine, metrics: Metrics, shadow: Shadow, model: Model) -> None:
        async with engine.admitted():
            shadow.consider(model, [row()], [RESULT])
            await engine.catalog.remove("yoso")
            gone = weakref.ref(model)
            del model
            await until(lambda: gone() is None)
            assert shadow.waiting == 1
        await until(lambda: shadow.waiting == 0)
        assert dropped(metrics, "unloaded") == 1

    run(bundles["yoso"], scenario)


def metric(service: Service, start: str) -> float:
    """Sum of the series whose line starts so."""
    lines = service.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))


def test_live_agreement_is_measured_and_a_low_one_is_said(start_with: Callable[..., Service], tmp_path: Path) -> None:
    """The counts are those of the same texts run here; a calibration that promised more raises the gauge."""
    labels = [f"clause {index}" for index in range(9)]
    folder = tiny.write(tmp_path / "yoso", "yoso", labels=labels, multi_label=True, pooling="mean")
    model = load(folder, check=False)
    promised = calibrations.calibration(
        model.manifest.revision, [8192], [({"num_hashes": 0}, [1000]), (CHEAP, [1000])], 1000
    )
    calibrations.write(folder, promised)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(tiny.WORDS, 12)) for _ in range(75)]
    encoded = [Input("inputs", text).encode(model.encoder, False) for text in texts]
    answers, exact = (
        [
            model.predict(each.logits).labels
            for each in model.run([Row(e.token_ids, e.type_ids, knobs) for e in encoded])
        ]
        for knobs in (CHEAP, model.knobs.exact())
    )
    same = sum(one == other for one, other in zip(answers, exact, strict=True))
    assert 10 < same < 65, "the setting of this test changes answers"

    one = start_with([folder], "--threads", "1", "--shadow-share", "1", "--seed", "0", "--log-level", "debug")
    assert one.classify({"inputs": texts, **CHEAP}).status_code == 200
    assert one.classify({"inputs": texts[:3], "num_hashes": 0}).status_code == 200
    end = time.monotonic() + 20
    name = "attenuator_shadow_texts_total"
    while metric(one, name) < len(texts):
        assert time.monotonic() < end
        time.sleep(0.05)
    place = 'knobs="num_hashes=1",model="yoso",tokens="1-8192"'
    assert metric(one, f'{name}{{answer="same",{place}}}') == same
    assert metric(one, f'{name}{{answer="other",{place}}}') == len(texts) - same
    assert metric(one, f"attenuator_agreement_low{{{place}}}") == 1
    assert metric(one, "attenuator_shadow_waiting_texts") == 0
    log = one.wait_for_log("WARNING", "agreement of model 'yoso'", "num_hashes 1, 1-8192 tokens, is low")
    assert log.count("is low") == 1
    assert not any(text[:20] in log for text in texts)


def test_escalated_texts_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say decides at which setting they are answered: they are no sample of all texts there."""
    monkeypatch.setattr(module, "SETTLE_S", 1e6)  # nothing runs: what was drawn is looked at

    async def scenario(engine: Engine, metrics: Metrics, shadow: Shadow, model: Model) -> None:
        app = create_app(engine, ServeSettings(), KeyRing(None, None, None), metrics)
        body = {"inputs": ["a quiet film", "not very good but never dull"], "min_agreement": 0.9}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            for fields in ({}, {"escalate": True}):
                answer = await client.post("/v1/classify", json=body | fields)
                assert answer.status_code == 200, answer.text
        assert [text.escalated for text in shadow._waiting] == [False, False, True, True]

    run(BUNDLES / "reviews-mca", scenario)


def test_without_the_setting_nothing_runs_again(service: Service) -> None:
    service.good()
    assert metric(service, "attenuator_shadow_texts_total") == 0
