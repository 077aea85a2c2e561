"""Goals through a real server with a calibrated bundle: answers, batches, refusals, what the server says about it."""

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import calibrations
import pytest
import tiny
from service import Service, dumped

from attenuator import errors
from attenuator.__main__ import main
from attenuator.clients import AsyncClient, Client
from attenuator.runtime import Model, Row, load
from attenuator.serve.accuracy.goals import Circumstances, knobs_for
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

SETTINGS = [{"num_hashes": value} for value in (0, 512, 256, 64, 16, 4)]
SHORT, LONG = "a good film", " ".join(tiny.WORDS * 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write(tmp_path_factory.mktemp("calibrated") / "yoso", "yoso")
    uncalibrated = load(folder, check=False)
    calibrations.write(folder, calibrations.measured(uncalibrated, [24, 240], SETTINGS))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, check=False)


@pytest.fixture(scope="module")
def calibrated(folder: Path, bundles: dict[str, Path]) -> Iterator[Service]:
    started = Service([folder, bundles["mca"]])
    yield started
    assert started.stop() == 0, started.log()


def ok(service: Service, **fields: Any) -> dict[str, Any]:
    response = service.classify({"model": "yoso", "return_logits": True, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two answers differ in who chose the knobs and in the time alone."""
    skipped = ("timing_ms", "chosen_by", "requested")
    return {k: v for k, v in one.items() if k not in skipped} == {k: v for k, v in other.items() if k not in skipped}


@pytest.mark.parametrize("text", [SHORT, LONG], ids=["short", "long"])
def test_an_agreement_is_kept_by_what_calibration_says(calibrated: Service, model: Model, text: str) -> None:
    calibration = model.calibration
    assert calibration
    knobs = set()
    for min_agreement in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1):
        answer = ok(calibrated, inputs=text, min_agreement=min_agreement, seed=5)
        assert (answer["chosen_by"], answer["requested"]) == ("goal", {})
        bucket = calibration.bucket(answer["tokens"][0])
        [setting] = [each for each in calibration.settings if each.knobs == answer["knobs"]]
        assert setting.agreement[bucket].bound >= min_agreement or answer["knobs"] == {"num_hashes": 0}
        assert answer["expected_agreement"] == setting.agreement[bucket].value
        assert same(answer, ok(calibrated, inputs=text, **answer["knobs"], seed=5))
        knobs.add(answer["knobs"]["num_hashes"])
    assert 0 in knobs
    assert len(knobs) > 1, "the goals of this test choose between settings"


def test_the_longest_input_chooses_for_all(calibrated: Service) -> None:
    for min_agreement in (0.5, 0.7, 0.9):
        together = ok(calibrated, inputs=[SHORT, LONG, SHORT], min_agreement=min_agreement)
        alone = ok(calibrated, inputs=LONG, min_agreement=min_agreement)
        for name in ("knobs", "expected_agreement"):
            assert together[name] == alone[name]


def test_what_is_expected_is_said_wherever_it_is_known(calibrated: Service, model: Model) -> None:
    assert model.calibration
    answer = ok(calibrated, inputs=SHORT, num_hashes=64)
    assert (answer["chosen_by"], answer["expected_agreement"]) == (
        "caller",
        model.calibration.settings[3].agreement[0].value,
    )
    assert ok(calibrated, inputs=SHORT, num_hashes=0)["expected_agreement"] == 1.0
    assert "expected_agreement" not in ok(calibrated, inputs=SHORT, num_hashes=65)
    assert "expected_agreement" not in ok(calibrated, inputs=SHORT), "the default is not among the settings measured"
    assert "expected_agreement" not in ok(calibrated, model="mca", inputs=SHORT)


PEERS: dict[str, dict[str, Any]] = {
    "/predict": {"model": "yoso", "inputs": SHORT, "min_agreement": 0.7},
    "/classify": {"model": "yoso", "input": SHORT, "min_agreement": 0.7},
    "/v2/models/yoso/infer": {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [SHORT]}],
        "parameters": {"min_agreement": 0.7},
    },
}


@pytest.mark.parametrize("path", PEERS)
def test_goals_choose_on_the_routes_of_other_servers_too(calibrated: Service, path: str) -> None:
    own = ok(calibrated, inputs=SHORT, min_agreement=0.7)
    answer = calibrated.client.post(path, json=PEERS[path])
    assert answer.status_code == 200, answer.text
    result = json.loads(answer.headers["Attenuator-Result"])
    for name in ("model", "revision", "knobs", "chosen_by", "expected_agreement", "seed"):
        assert result[name] == own[name]
    calibrated.wait_for_log(f"POST {path.replace('/yoso/', '/{model}/')} 200", "chosen_by=goal", "min_agreement=0.7")


def test_a_latency_chooses_by_time(calibrated: Service) -> None:
    most, least = ok(calibrated, inputs=LONG, max_latency_ms=60_000), ok(calibrated, inputs=LONG, max_latency_ms=1e-3)
    assert (most["knobs"], most["expected_agreement"]) == ({"num_hashes": 0}, 1.0)
    assert least["knobs"]["num_hashes"] > 0
    calibrated.wait_for_log("chosen_by=goal", "max_latency_ms=0.001")
    assert most["chosen_by"] == least["chosen_by"] == "goal"


def test_goals_run_in_batches_with_others_and_answer_as_alone(calibrated: Service) -> None:
    """Forty at once: goals, knobs and defaults of two models; each equals the one whose knob the caller sets."""
    choices: list[dict[str, Any]] = [
        {"min_agreement": 0.5},
        {"min_agreement": 0.9},
        {"min_agreement": 1},
        {"max_latency_ms": 60_000},
        {"max_latency_ms": 3},
        {"num_hashes": 9},
        {},
        {"model": "mca"},
    ]
    bodies = [
        {"model": "yoso", "inputs": text, "seed": seed, "return_logits": True, **fields}
        for seed, text in enumerate([SHORT, LONG, [SHORT, LONG], SHORT, LONG])
        for fields in choices
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(calibrated.classify, bodies))
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    for body, answer in zip(bodies, (answer.json() for answer in answers), strict=True):
        goal = {"min_agreement", "max_latency_ms"} & body.keys()
        assert (answer["chosen_by"] == "goal") == bool(goal)
        plain = {name: value for name, value in body.items() if name not in goal}
        assert same(answer, ok(calibrated, **plain | answer["knobs"]))


def test_both_goals_and_what_contradicts_them(calibrated: Service) -> None:
    body = {"model": "yoso", "inputs": LONG, "min_agreement": 0.5}
    answer = ok(calibrated, **body, max_latency_ms=60_000)
    assert answer["knobs"] == {"num_hashes": 0}
    refusal = calibrated.classify({**body, "min_agreement": 1, "max_latency_ms": 1e-3})
    assert (refusal.status_code, refusal.json()["error_type"]) == (422, "goal_out_of_reach")
    assert refusal.json()["param"] == "max_latency_ms"
    assert "num_hashes 0" in refusal.json()["error"]


def test_goals_are_for_calibrated_models_and_not_beside_knobs(calibrated: Service) -> None:
    for name, value in (("min_agreement", 0.9), ("max_latency_ms", 50)):
        refusal = calibrated.classify({"model": "mca", "inputs": SHORT, name: value})
        assert (refusal.status_code, refusal.json()["error_type"]) == (422, "not_calibrated")
        assert "model 'mca' has none" in refusal.json()["error"]
        refusal = calibrated.classify({"model": "yoso", "inputs": SHORT, name: value, "num_hashes": 4})
        assert (refusal.status_code, refusal.json()["param"]) == (422, name)


def test_models_show_their_calibration(calibrated: Service, model: Model) -> None:
    with Client(f"http://127.0.0.1:{calibrated.port}") as client:
        listed = {each.name: each.calibration for each in client.models()}
    assert listed["mca"] is None
    shown, calibration = listed["yoso"], model.calibration
    assert shown
    assert calibration
    assert [(row.low, row.high, row.texts) for row in shown.buckets] == [(1, 24, 64), (25, 8192, 64)]
    assert shown.buckets[0].settings == tuple(range(len(SETTINGS)))
    assert [setting.knobs for setting in shown.settings] == SETTINGS
    for setting, expected in zip(shown.settings, calibration.settings, strict=True):
        assert [each.value for each in setting.agreement] == [each.value for each in expected.agreement]
        if setting.knobs == SETTINGS[0]:
            assert [each.bound for each in setting.agreement] == [1.0, 1.0], "the exact answers are the reference"
        else:
            assert [each.bound for each in setting.agreement] == [each.bound for each in expected.agreement]


def test_clients_and_the_command_state_goals(
    calibrated: Service, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{calibrated.port}"

    async def awaited() -> Any:
        async with AsyncClient(url) as client:
            return await client.classify(LONG, model="yoso", min_agreement=0.5)

    with Client(url) as client:
        answer = client.classify(LONG, model="yoso", min_agreement=0.5)
        assert client.classify(LONG, model="yoso", max_latency_ms=60_000).knobs == {"num_hashes": 0}
        with pytest.raises(errors.GoalOutOfReach):
            client.classify(LONG, model="yoso", min_agreement=1, max_latency_ms=1e-3)
        with pytest.raises(errors.NotCalibrated):
            client.classify(LONG, model="mca", max_latency_ms=50)
    assert answer.chosen_by == asyncio.run(awaited()).chosen_by == "goal"
    assert answer.knobs == asyncio.run(awaited()).knobs
    for where in (["--url", url, "--model", "yoso"], ["--bundle", str(folder)]):
        assert main(["classify", *where, "--min-agreement", "0.5", "--json", LONG]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["knobs"], record["chosen_by"]) == (answer.knobs, "goal")
        assert record["expected_agreement"] == answer.expected_agreement


USAGE = {
    "beside a knob": (["--min-agreement", "0.9", "--num-hashes", "4"], "stands beside --num-hashes"),
    "out of range": (["--min-agreement", "1.5"], "--min-agreement"),
    "without a server": (["--max-latency-ms", "50"], "needs a server"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_goals_of_the_command_are_usage_errors(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    flags, part = USAGE[name]
    with pytest.raises(SystemExit) as ended:
        main(["classify", "--bundle", str(folder), *flags, "text"])
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


def test_a_damaged_calibration_ends_the_start_with_one_sentence(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "yoso"))
    calibrations.write(copied, json.loads((copied / "calibration.json").read_text()) | {"revision": "0" * 64})
    command = [sys.executable, "-m", "attenuator", "serve", str(copied), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert "belongs to revision '000000000000'" in line
    assert line.endswith("calibrate again, or delete it")


def test_a_queue_lowers_what_a_latency_chooses_and_the_prediction_is_kept(folder: Path) -> None:
    """The same request with nothing waiting and with seconds of work waiting; and the statistics of the prediction."""

    async def scenario() -> None:
        engine = Engine(ServeSettings.model_validate({"threads": 1, "max_queue_tokens": 10**7}))
        await engine.start([folder])
        try:
            model = engine.model(None)
            latency = engine.latencies[model]
            exact, tokens = model.knobs.exact(), [4000]
            idle = engine.admission.forecast(model, tokens, exact)
            assert idle.queue_s == 0
            latency_ms = 1300 * idle.run_s
            now = Circumstances(tokens[0], 0.0, partial(engine.admission.forecast, model, tokens), lambda knobs: True)

            def chosen() -> dict[str, Any]:
                return knobs_for(model, now, max_latency_ms=latency_ms)

            assert chosen() == exact
            encoded = model.from_ids([5] * 4000)
            rows = [Row(encoded.token_ids, encoded.type_ids, exact)]
            before = latency.batches
            waiting = [asyncio.create_task(engine.run(model, rows)) for _ in range(3)]
            await asyncio.sleep(0)
            busy = engine.admission.forecast(model, tokens, exact)
            assert chosen()["num_hashes"] > 0
            with pytest.raises(errors.Overloaded) as caught:
                knobs_for(model, now, max_latency_ms=latency_ms, min_agreement=1.0)
            assert caught.value.retry_after_s == pytest.approx(busy.queue_s - 0.3 * idle.run_s, abs=0.5 * idle.run_s)
            assert busy.queue_s > idle.run_s, "a heavy request waits for a row of each of the others at least"
            cheap = engine.admission.forecast(model, tokens, model.knobs.check({"num_hashes": 4}))
            assert cheap.queue_s < busy.queue_s, "it runs in the light lane, where nothing waits"
            await asyncio.gather(*waiting)
            assert latency.batches - before == 3
        finally:
            await engine.stop()

    asyncio.run(scenario())


def goal(**fields: Any) -> bytes:
    return dumped(num_hashes=..., **fields)


ENDLESS = b'{"model": "yoso", "inputs": "a", "max_latency_ms": 1e999}'
# id: (status, error_type, param, part of the sentence, body), of a server without calibrated models
BAD: dict[str, tuple[int, str, str, str, bytes]] = {
    "latency beside knob": (422, "invalid_request", "max_latency_ms", "num_hashes", dumped(max_latency_ms=50)),
    "agreement beside knob": (422, "invalid_request", "min_agreement", "num_hashes", dumped(min_agreement=0.9)),
    "no calibration": (422, "not_calibrated", "min_agreement", "calibrate", dumped(num_hashes=..., min_agreement=0.9)),
    "agreement of no knob": (422, "not_calibrated", "min_agreement", "none", goal(model="softmax", min_agreement=1)),
    "agreement 0": (422, "invalid_request", "min_agreement", "is 0, must be", goal(min_agreement=0)),
    "agreement above 1": (422, "invalid_request", "min_agreement", "1.01", goal(min_agreement=1.01)),
    "agreement a text": (422, "invalid_request", "min_agreement", "a text", goal(min_agreement="0.9")),
    "agreement true": (422, "invalid_request", "min_agreement", "true", goal(min_agreement=True)),
    "agreement null": (422, "invalid_request", "min_agreement", "null", goal(min_agreement=None)),
    "latency 0": (422, "invalid_request", "max_latency_ms", "is 0, must be", goal(max_latency_ms=0)),
    "latency below 0": (422, "invalid_request", "max_latency_ms", "-1", goal(max_latency_ms=-1)),
    "latency too large": (422, "invalid_request", "max_latency_ms", "3.6e+06", goal(max_latency_ms=3_600_001)),
    "latency a text": (422, "invalid_request", "max_latency_ms", "a text", goal(max_latency_ms="50")),
    "latency true": (422, "invalid_request", "max_latency_ms", "true", goal(max_latency_ms=True)),
    "latency null": (422, "invalid_request", "max_latency_ms", "null", goal(max_latency_ms=None)),
    "latency overflows": (422, "invalid_request", "max_latency_ms", "inf", ENDLESS),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_goals_are_refused(service: Service, case: tuple[int, str, str, str, bytes]) -> None:
    status, kind, param, part, body = case
    response = service.client.post("/v1/classify", content=body)
    answer = response.json()
    assert (response.status_code, answer["error_type"], answer["param"]) == (status, kind, param)
    assert part in answer["error"]
    assert answer["allowed"]
    assert ": " not in answer["allowed"], "what a field may be, without what it is for"


def test_goals_keep_to_a_keys_ceilings_and_to_the_limit_on_cost(folder: Path, model: Model, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    ceilings: dict[str, dict[str, int]] = {"free": {}, "limited": {"num_hashes": 64}}
    keys.write_text(
        json.dumps(
            [
                {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "ceilings": ceiling}
                for name, ceiling in ceilings.items()
            ]
        )
    )
    tokens = len(model.encode(LONG).token_ids)
    costs = {each["num_hashes"]: model.predict_cost(tokens, each) / 1e9 for each in SETTINGS}
    assert max(costs, key=lambda value: costs[value]) == 512
    one = Service([folder], "--threads", "1", "--api-keys", str(keys), "--max-cost", str((costs[256] + costs[512]) / 2))
    try:

        def ask(key: str, **goals: float) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {key}"}
            return dict(one.client.post("/v1/classify", json={"inputs": LONG, **goals}, headers=headers).json())

        for key, best in (("free", {0, 256}), ("limited", {64})):
            assert ask(key, max_latency_ms=60_000)["knobs"]["num_hashes"] in best
        refusal = ask("limited", min_agreement=1)
        assert (refusal["error_type"], refusal["param"]) == ("goal_out_of_reach", "min_agreement")
        assert "ceilings of the API key" in refusal["error"]
        assert ask("limited", num_hashes=512)["error_type"] == "knob_out_of_range"
    finally:
        one.stop()


def test_a_running_service_takes_a_new_calibration_and_keeps_the_old_one_from_a_damaged_file(
    folder: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "yoso"))
    content = json.loads((copied / "calibration.json").read_text())
    (copied / "calibration.json").unlink()
    one = Service([copied], "--admin-key", "admin-admin-7", "--bundle-root", str(tmp_path))
    headers = {"Authorization": "Bearer admin-admin-7"}

    def load_again() -> int:
        return one.client.put("/v1/models/yoso", json={"bundle": "yoso"}, headers=headers).status_code

    def ask() -> dict[str, Any]:
        return dict(one.classify({"inputs": SHORT, "min_agreement": 1}).json())

    try:
        assert ask()["error_type"] == "not_calibrated"
        calibrations.write(copied, content)
        assert load_again() == 200
        assert ask()["chosen_by"] == "goal"
        calibrations.write(copied, content | {"settings": []})
        assert load_again() == 422
        assert ask()["chosen_by"] == "goal"
    finally:
        one.stop()
