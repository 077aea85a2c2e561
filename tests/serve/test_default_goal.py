"""Requests that set nothing, through a real server with a default goal: answers, routes, files, `--default exact`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import calibrations
import pytest
import tiny
from service import Service

from attenuator.__main__ import main
from attenuator.api import CalibrationInfo
from attenuator.clients import Client
from attenuator.runtime import load
from attenuator.serve.settings import ServeSettings

# texts of 1,000 that agree, in two ranges of lengths: 0.99 takes 16 hashes for short texts and 64 for long ones
MEASURED = {0: (1000, 1000), 64: (995, 999), 16: (992, 980), 4: (980, 900)}
SHORT, LONG = "a good film", " ".join(tiny.WORDS * 25)
EXPECTED = {SHORT: (16, 0.992), LONG: (64, 0.999)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write(tmp_path_factory.mktemp("default") / "yoso", "yoso")
    sure = [
        {"knobs": {"num_hashes": hashes}, "scale": [1.0] * 2, "intercept": 0.0, "slope": 1.0, "sure": [[0.5]] * 2}
        for hashes in MEASURED
        if hashes
    ]
    content = calibrations.calibration(
        load(folder, check=False).manifest.revision,
        [24, 8192],
        [({"num_hashes": hashes}, counts) for hashes, counts in MEASURED.items()],
        default_agreement=0.99,
        certainty={"texts": 1000, "goals": [0.9], "settings": sure},
    )
    calibrations.write(folder, content)
    return folder


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Service]:
    started = Service([folder])
    yield started
    assert started.stop() == 0, started.log()


def ok(service: Service, **fields: Any) -> dict[str, Any]:
    response = service.classify(fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def shown(service: Service) -> CalibrationInfo:
    with Client(f"http://127.0.0.1:{service.port}") as client:
        [model] = client.models()
    assert model.calibration
    return model.calibration


@pytest.mark.parametrize("text", EXPECTED, ids=["short", "long"])
def test_the_answer_says_what_it_ran_at_and_is_that_of_the_same_knobs(serving: Service, text: str) -> None:
    hashes, agreement = EXPECTED[text]
    answer = ok(serving, inputs=text, return_logits=True)
    named = {name: answer[name] for name in ("knobs", "requested", "chosen_by", "expected_agreement")}
    assert named == {
        "knobs": {"num_hashes": hashes},
        "requested": {},
        "chosen_by": "default",
        "expected_agreement": agreement,
    }
    assert answer["predictions"] == ok(serving, inputs=text, return_logits=True, num_hashes=hashes)["predictions"]
    serving.wait_for_log(f"knobs.num_hashes={hashes} chosen_by=default")


def test_the_longest_text_chooses_for_the_request(serving: Service) -> None:
    answer = ok(serving, inputs=[SHORT, LONG, SHORT])
    assert (answer["knobs"], answer["expected_agreement"]) == ({"num_hashes": 64}, 0.999)


def test_explained_answers_are_the_same(serving: Service) -> None:
    plain, explained = (ok(serving, inputs=SHORT, explain=explain) for explain in (False, True))
    assert explained["knobs"] == plain["knobs"] == {"num_hashes": 16}
    assert explained["predictions"][0]["score"] == plain["predictions"][0]["score"]
    assert explained["predictions"][0]["standard_error"] > 0


PEERS: dict[str, dict[str, Any]] = {
    "/predict": {"inputs": SHORT},
    "/classify": {"input": SHORT},
    "/v2/models/yoso/infer": {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [SHORT]}]},
}


@pytest.mark.parametrize("path", PEERS)
def test_it_is_the_same_on_the_routes_of_other_servers(serving: Service, path: str) -> None:
    answer = serving.client.post(path, json=PEERS[path])
    assert answer.status_code == 200, answer.text
    result = json.loads(answer.headers["Attenuator-Result"])
    named = {name: result[name] for name in ("knobs", "chosen_by", "expected_agreement")}
    assert named == {"knobs": {"num_hashes": 16}, "chosen_by": "default", "expected_agreement": 0.992}


def test_the_list_of_models_says_which_setting_it_is(serving: Service) -> None:
    calibration = shown(serving)
    assert calibration.default_agreement == 0.99
    usual = [row.default for row in calibration.buckets]
    assert [calibration.settings[place or 0].knobs for place in usual] == [{"num_hashes": 16}, {"num_hashes": 64}]


@pytest.mark.parametrize("text", EXPECTED, ids=["short", "long"])
def test_a_bundle_in_this_process_answers_as_the_service(
    serving: Service, folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    answer = ok(serving, inputs=text, return_logits=True)
    assert main(["classify", "--bundle", str(folder), "--json", "--logits", text]) == 0
    record = json.loads(capsys.readouterr().out)
    for name in ("knobs", "chosen_by", "expected_agreement", "seed"):
        assert record[name] == answer[name]
    assert record["logits"] == answer["predictions"][0]["logits"]


def test_a_row_of_a_file_is_answered_as_alone(folder: Path, tmp_path: Path) -> None:
    """A long neighbour would change the knobs of a batch."""
    rows, output = tmp_path / "rows.txt", tmp_path / "answers.jsonl"
    rows.write_text(f"{SHORT}\n{LONG}\n{SHORT}\n")
    assert main(["classify", "--bundle", str(folder), "--input", str(rows), "--output", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["knobs"] for record in records] == [{"num_hashes": each} for each in (16, 64, 16)]


def test_exact_by_default_is_the_operators_choice(folder: Path, start_with: Callable[..., Service]) -> None:
    service = start_with([folder], "--default", "exact")
    for text in (SHORT, LONG):
        answer = ok(service, inputs=text)
        assert (answer["knobs"], answer["chosen_by"]) == ({"num_hashes": 0}, "default")
        assert answer["expected_agreement"] == 1
    assert ok(service, inputs=SHORT, min_agreement=0.9)["knobs"] == {"num_hashes": 4}, "goals stay"
    calibration = shown(service)
    assert calibration.default_agreement is None
    assert {row.default for row in calibration.buckets} == {None}
    [knob] = service.client.get("/v1/models").json()["models"][0]["knobs"]
    assert knob["default"] == knob["exact"] == 0


def test_the_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServeSettings().default == "goal"
    monkeypatch.setenv("ATTENUATOR_DEFAULT", "exact")
    assert ServeSettings().default == "exact"
