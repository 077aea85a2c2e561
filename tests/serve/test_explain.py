"""`explain` and `escalate` through a real server with bundled models: bits, probabilities, errors, steps, refusals."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import calibrations
import numpy as np
import pytest
import tiny
from service import Service

from attenuator import errors
from attenuator.__main__ import main
from attenuator.clients import AsyncClient, Client
from attenuator.runtime import Model, Row, load
from attenuator.runtime.explaining import Runner, RunOutcome, answer, judge_of
from attenuator.serve.access.keys import ApiKey, parse_keys
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.plan import Limits
from attenuator.serve.engine import Engine, RequestRun
from attenuator.serve.scheduling.requests import ANYONE
from attenuator.serve.settings import ServeSettings

BUNDLES = Path(__file__).resolve().parents[2] / "examples" / "bundles"
SENTENCE = "a quiet moving film that is not good but the plot was never dull and i want it back"
WORDS = SENTENCE.split()
DRAW = random.Random(8)
TEXTS = [" ".join(DRAW.choices(WORDS, k=DRAW.randint(5, 60))) for _ in range(24)]
NAMES = ("reviews", "reviews-mca")
SETTINGS: dict[str, list[dict[str, float]]] = {
    "reviews": [{}, {"num_hashes": 4}, {"num_hashes": 50}, {"num_hashes": 0}, {"num_hashes": 32}],
    "reviews-mca": [{}, {"keep": 0.3, "alpha": 1.0}, {"keep": 0.3, "alpha": 0.0}, {"keep": 1.0, "alpha": 0.0}],
}
ADDED = ("standard_error", "agreement_probability", "knobs")


@pytest.fixture(scope="module")
def explaining(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The bundled models, one without a calibration, one with an old one, one without knobs."""
    old = tiny.write(tmp_path_factory.mktemp("old") / "old", "yoso")
    revision = load(old, check=False).manifest.revision
    calibrations.write(old, calibrations.calibration(revision, [8192], [({"num_hashes": 0}, [9])], trials=9))
    started = Service([*(BUNDLES / name for name in NAMES), bundles["mca"], bundles["softmax"], old])
    yield started
    assert started.stop() == 0, started.log()


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    return {name: load(BUNDLES / name, check=False) for name in NAMES}


def ok(service: Service, **fields: Any) -> dict[str, Any]:
    response = service.classify({"model": "reviews", "inputs": TEXTS, "return_logits": True, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def bare(predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predictions without what explains them."""
    return [{name: value for name, value in each.items() if name not in ADDED} for each in predictions]


@pytest.mark.parametrize("name", NAMES)
def test_an_explained_answer_is_the_same_and_says_how_sure_it_is(
    explaining: Service, loaded: dict[str, Model], name: str
) -> None:
    model = loaded[name]
    for knobs in SETTINGS[name]:
        plain = ok(explaining, model=name, seed=5, **knobs)
        explained = ok(explaining, model=name, seed=5, explain=True, **knobs)
        assert bare(explained["predictions"]) == plain["predictions"]
        assert {"standard_error", "agreement_probability", "steps", "relative_cost"}.isdisjoint(plain)
        assert not any(added in each for each in plain["predictions"] for added in ADDED)
        assert "steps" not in explained
        for prediction, tokens in zip(explained["predictions"], explained["tokens"], strict=True):
            logits = np.array(prediction["logits"], dtype=np.float32)
            expected = judge_of(model).probability(logits, model.knobs.check(explained["knobs"]), tokens)
            assert prediction["agreement_probability"] == expected
            assert 0 < prediction["agreement_probability"] <= 1
        again = ok(explaining, model=name, seed=5, explain=True, **knobs)
        assert again["predictions"] == explained["predictions"]


def test_nothing_is_drawn_where_nothing_is_random(explaining: Service) -> None:
    for name, knobs, share in (
        ("reviews", {"num_hashes": 0}, 1.0),
        ("reviews-mca", {"keep": 1.0, "alpha": 0.0}, 1.0),
        ("softmax", {}, 1.0),
        ("reviews-mca", {"keep": 0.3, "alpha": 0.0}, None),
    ):
        explained = ok(explaining, model=name, explain=True, **knobs)
        probabilities = [each["agreement_probability"] for each in explained["predictions"]]
        assert {each["standard_error"] for each in explained["predictions"]} == {0}
        assert (set(probabilities) == {1}) == (share == 1)
        assert explained["relative_cost"] == share or (share is None and explained["relative_cost"] < 1)


def test_an_answer_less_accurate_than_all_that_was_measured_has_no_probability(explaining: Service) -> None:
    [prediction] = ok(explaining, inputs=TEXTS[0], num_hashes=1, explain=True)["predictions"]
    assert "agreement_probability" not in prediction
    assert prediction["standard_error"] > 0


@pytest.mark.parametrize(("name", "index"), [("reviews", 1), ("reviews", 2), ("reviews", 4), ("reviews-mca", 1)])
def test_standard_errors_are_about_the_deviation_over_seeds(loaded: dict[str, Model], name: str, index: int) -> None:
    """In the mean over texts; from so few draws a single one is known to about 40 %. MCA's may be 1.6 times it."""
    model = loaded[name]
    knobs = model.knobs.check(SETTINGS[name][index])
    using = Runner(runner(model))
    encoded = [model.encode(text) for text in TEXTS]

    def rows(seed: int) -> list[Row]:
        return [Row(one.token_ids, one.type_ids, knobs, seed) for one in encoded]

    many = [model.run(rows(seed)) for seed in range(100, 132)]
    scores = np.array([[model.predict(result.logits).score for result in run] for run in many])
    estimates = [asyncio.run(answer(model, rows(seed), using, explain=True)).standard_errors for seed in range(8)]
    estimated = np.sqrt(np.mean(np.square(np.array(estimates, dtype=float))))
    ratio = estimated / np.sqrt(scores.var(axis=0, ddof=1).mean())
    assert 0.75 < ratio < (1.6 if "alpha" in knobs else 1.3), ratio
    assert scores.std(axis=0).max() > 1e-3


def runner(model: Model, overloaded_after: int = 10**9) -> Any:
    """Runs rows at once; refuses them after some runs."""
    runs = 0

    async def run(rows: list[Row]) -> RunOutcome:
        nonlocal runs
        runs += 1
        if runs > overloaded_after:
            raise errors.Overloaded("no room")
        return RunOutcome(model.run(rows))

    return run


@pytest.mark.parametrize("goal", [0.9, 0.999])
def test_what_is_not_sure_enough_is_answered_again_with_the_bits_of_those_knobs(
    explaining: Service, goal: float
) -> None:
    begun = ok(explaining, num_hashes=4, explain=True, seed=3)
    escalated = ok(explaining, num_hashes=4, escalate=True, min_agreement=goal, seed=3)
    assert escalated["chosen_by"] == "escalation"
    assert escalated["requested"] == {"num_hashes": 4}
    assert escalated["steps"] >= 2
    moved = 0
    for text, before, after in zip(TEXTS, begun["predictions"], escalated["predictions"], strict=True):
        assert after["agreement_probability"] >= goal or after["knobs"] == {"num_hashes": 0}
        sure = before["agreement_probability"] >= goal
        assert (after["knobs"] == {"num_hashes": 4}) == sure
        [alone] = ok(explaining, inputs=text, seed=3, **after["knobs"])["predictions"]
        assert bare([after]) == [alone]
        moved += not sure
    assert 0 < moved < len(TEXTS), "some texts are sure at once, some are not"
    assert escalated["knobs"] in [each["knobs"] for each in escalated["predictions"]]
    assert escalated["relative_cost"] > 0


def test_without_knobs_it_begins_where_the_expected_time_is_least(explaining: Service) -> None:
    exact = ok(explaining, escalate=True, min_agreement=1)
    assert (exact["knobs"], exact["steps"], exact["relative_cost"]) == ({"num_hashes": 0}, 1, 1)
    long = [" ".join(TEXTS)]
    begun = ok(explaining, inputs=long, escalate=True, min_agreement=0.5)
    assert begun["knobs"]["num_hashes"] > 0
    assert begun["expected_agreement"] < 1
    both = ok(explaining, model="reviews-mca", escalate=True, explain=True, min_agreement=0.99)
    for each in both["predictions"]:
        assert each["agreement_probability"] >= 0.99
        assert each["standard_error"] >= 0


def test_escalation_ends_where_there_is_no_room(loaded: dict[str, Model]) -> None:
    """A deadline or the limit on cost that leaves none, and a queue that is full: the answers so far stand."""
    model = loaded["reviews"]
    sure: Any = {"explain": True, "reach": 0.999}
    knobs = model.knobs.check({"num_hashes": 4})
    encoded = [model.encode(text) for text in TEXTS]
    rows = [Row(one.token_ids, one.type_ids, knobs) for one in encoded]
    expected = [result.logits.tobytes() for result in model.run(rows)]
    for using in (Runner(runner(model), has_room=lambda rows, spent: False), Runner(runner(model, overloaded_after=1))):
        answered = asyncio.run(answer(model, rows, using, **sure))
        assert [result.logits.tobytes() for result in answered.results] == expected
        assert answered.steps == 1
        assert min(value for value in answered.probabilities if value is not None) < 0.999
        assert set(answered.standard_errors) == {None}, "there was no room for these either"
    asked: list[float] = []

    def cheap_alone(rows: Any, spent: float) -> bool:
        asked.append(spent)
        return all(0 < row.knobs["num_hashes"] <= 16 for row in rows)

    answered = asyncio.run(answer(model, rows, Runner(runner(model), cheap_alone), **sure))
    assert {row.knobs["num_hashes"] for row in answered.rows} <= {4, 8, 16}
    assert answered.steps is not None
    assert answered.steps > 1
    assert asked == sorted(asked)
    assert asked[0] > 0
    with pytest.raises(errors.Overloaded):
        asyncio.run(answer(model, rows, Runner(runner(model, overloaded_after=0)), **sure))


def test_a_deadline_with_time_enough_lets_all_steps_run_and_they_are_counted(explaining: Service) -> None:
    long = " ".join(TEXTS * 2)
    answered = ok(explaining, inputs=[long] * 4, num_hashes=4, escalate=True, min_agreement=1, timeout_ms=600_000)
    assert (answered["steps"], answered["knobs"]) == (2, {"num_hashes": 0})
    explaining.wait_for_log("chosen_by=escalation", "steps=2")
    metrics = explaining.client.get("/metrics").text
    assert 'attenuator_escalated_requests_total{model="reviews",steps="2"}' in metrics


def test_there_is_room_until_the_deadline_and_the_limit_on_cost(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        engine = Engine(ServeSettings.model_validate({"threads": 1}))
        await engine.start([bundles["yoso"]])
        try:
            model = engine.model(None)
            encoded = model.from_ids([5] * 400)
            row = Row(encoded.token_ids, encoded.type_ids, model.knobs.exact())
            cost = model.predict_cost(400, row.knobs)

            def room(*, left_s: float, spent: float = 0.0, max_cost: float | None = None) -> bool:
                began_s = time.perf_counter() + left_s - 100
                limits = Limits(max_cost=max_cost)
                run = RequestRun(engine, Work(model, [400]), limits, ANYONE, began_s, timeout_ms=100_000)
                return run.has_room([row, row], spent)

            assert room(left_s=99)
            assert not room(left_s=0)
            assert not room(left_s=engine.admission.forecast(model, [400], row.knobs).total_s), "for one, not for both"
            assert room(left_s=99, max_cost=2.5 * cost / 1e9)
            assert not room(left_s=99, max_cost=2.5 * cost / 1e9, spent=cost)

            knobs = model.knobs.check({"num_hashes": 8})
            limit = 1.5 * model.predict_cost(400, knobs) / 1e9
            limits = Limits(max_cost=limit)
            plain, explained = Work(model, [400]), Work(model, [400], explained=True)
            plain.check_cost(knobs, limit)
            assert limits.permit(plain, knobs)
            assert not limits.permit(explained, knobs), "its draws count"
            with pytest.raises(errors.InvalidRequest, match="the predicted cost is"):
                explained.check_cost(knobs, limit)

            [entry] = parse_keys('[{"name": "k", "key": "x", "tokens_per_s": 100, "burst_tokens": 9000}]', "here")
            for runs, tokens in (([1], 400), ([5], 2000), ([1, 2], 1200)):
                key = ApiKey(entry)
                assert key.tokens is not None
                using = RequestRun(engine, plain, Limits(), ANYONE, 0.0, spend=key.spend)
                for rows in runs:
                    await using.run([replace(row, knobs=knobs)] * rows)
                assert key.tokens.spare == 9000 - tokens, "draws and further steps count"
            alone, with_draws = (engine.load(work, ANYONE, 0.0).forecast(knobs)[1] for work in (plain, explained))
            assert with_draws > 2 * alone
        finally:
            await engine.stop()

    asyncio.run(scenario())


BAD: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "no goal": ("invalid_request", "escalate", "min_agreement", {"escalate": True}),
    "latency": (
        "invalid_request",
        "max_latency_ms",
        "timeout_ms",
        {"escalate": True, "min_agreement": 0.9, "max_latency_ms": 50},
    ),
    "knobs without escalate": (
        "invalid_request",
        "min_agreement",
        "num_hashes",
        {"escalate": False, "min_agreement": 0.9, "num_hashes": 4},
    ),
    "explain uncalibrated": ("not_calibrated", "explain", "calibrate", {"model": "mca", "explain": True}),
    "escalate uncalibrated": (
        "not_calibrated",
        "min_agreement",
        "calibrate",
        {"model": "mca", "escalate": True, "min_agreement": 0.9},
    ),
    "explain old": ("not_calibrated", "explain", "an old calibration", {"model": "old", "explain": True}),
    "escalate old": (
        "not_calibrated",
        "escalate",
        "an old calibration",
        {"model": "old", "escalate": True, "min_agreement": 0.9},
    ),
    "a number": ("invalid_request", "explain", "is 1, must be true or false", {"explain": 1}),
    "a text": ("invalid_request", "escalate", "a text", {"escalate": "true", "min_agreement": 0.9}),
    "null": ("invalid_request", "explain", "null", {"explain": None}),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_wrong_requests_are_refused(explaining: Service, case: tuple[str, str, str, dict[str, Any]]) -> None:
    kind, param, part, fields = case
    response = explaining.classify({"model": "reviews", "inputs": "good", **fields})
    body = response.json()
    assert (response.status_code, body["error_type"], body["param"]) == (422, kind, param)
    assert part in body["error"]
    assert body["allowed"]


def test_clients_and_the_command_ask_for_it(explaining: Service, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{explaining.port}"

    async def awaited() -> Any:
        async with AsyncClient(url) as client:
            return await client.classify(TEXTS[0], model="reviews", num_hashes=4, escalate=True, min_agreement=0.99)

    with Client(url) as client:
        explained = client.classify(TEXTS[0], model="reviews", num_hashes=32, explain=True)
        escalated = client.classify(TEXTS[0], model="reviews", num_hashes=4, escalate=True, min_agreement=0.99)
        assert {each.name: bool(each.calibration and each.calibration.explains) for each in client.models()} == {
            "reviews": True,
            "reviews-mca": True,
            "mca": False,
            "softmax": False,
            "old": False,
        }
        with pytest.raises(errors.NotCalibrated):
            client.classify("good", model="old", explain=True)
    [prediction] = explained.predictions
    assert prediction.standard_error is not None
    assert prediction.agreement_probability is not None
    assert prediction.knobs is None
    assert asyncio.run(awaited()).predictions == escalated.predictions
    for where in (["--url", url, "--model", "reviews"], ["--bundle", str(BUNDLES / "reviews")]):
        assert main(["classify", *where, "--num-hashes", "32", "--explain", "--json", TEXTS[0]]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["standard_error"] == prediction.standard_error
        assert record["agreement_probability"] == prediction.agreement_probability
        steps = ["--num-hashes", "4", "--escalate", "--min-agreement", "0.99", "--json"]
        assert main(["classify", *where, *steps, TEXTS[0]]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["steps"], record["chosen_by"]) == (escalated.steps, "escalation")
        assert (record["knobs"], record["score"]) == (escalated.predictions[0].knobs, escalated.predictions[0].score)
    assert main(["classify", "--url", url, "--model", "reviews", "--explain", TEXTS[0]]) == 0
    label, score, error, sure, _ = capsys.readouterr().out.split("\t")
    assert label in ("negative", "positive")
    assert 0 <= float(error) < 1
    assert 0 < float(sure) <= 1
    assert 0 < float(score) < 1


def test_wrong_flags_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, part in (
        (["--escalate"], "needs --min-agreement"),
        (["--escalate", "--min-agreement", "0.9", "--max-latency-ms", "5"], "stands beside --escalate"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["classify", "--url", "http://127.0.0.1:9", *flags, "text"])
        assert ended.value.code == 2
        assert part in capsys.readouterr().err
