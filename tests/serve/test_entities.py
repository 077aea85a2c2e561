"""Token classification over HTTP: the entities that a program of its own would get, or a sentence on what is wrong."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from schema_requests import accepted, ask, narrowed
from schemathesis.generation import GenerationMode
from service import Service

import attenuator
from attenuator.clients import Client
from attenuator.local import LocalModel

LABELS = ("O", "B-GOOD", "I-GOOD", "B-BAD", "I-BAD")
TEXTS = ["A good film, not a bad one.", "The clause shall renew the contract term " * 30, "x", "\u4e2d good 🎬 law"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token classifier that also has a knob."""
    return tiny.write(tmp_path_factory.mktemp("tags") / "tags", "yoso", labels=LABELS, pooling="none")


@pytest.fixture(scope="module")
def service(folder: Path, bundles: dict[str, Path]) -> Iterator[Service]:
    """It beside a classifier of whole texts."""
    started = Service([folder, bundles["yoso"]], "--shadow-share", "1")
    yield started
    assert started.stop() == 0, started.log()


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[LocalModel]:
    """It in this process."""
    with attenuator.load(folder, threads=1, check=False) as model:
        yield model


@pytest.mark.parametrize("aggregation", [None, "none", "simple", "first", "max", "average"])
def test_the_service_and_its_client_answer_as_in_process(service: Service, here: LocalModel, aggregation: Any) -> None:
    with Client(f"http://{service.host}:{service.port}") as client:
        for more in ({"num_hashes": 0}, {"num_hashes": 4, "seed": 3}, {"join": "max", "window": 16, "stride": 5}):
            fields: dict[str, Any] = {"aggregation": aggregation, **more}
            answer = client.classify(TEXTS, model="tags", **fields)
            expected = here.classify(TEXTS, **fields)
            assert answer.predictions == expected.predictions
            assert answer.tokens == expected.tokens
            entities = answer.predictions[0].entities
            assert entities
            assert all(0 <= each.start < each.end <= len(TEXTS[0]) for each in entities)
    alone = [service.classify({"model": "tags", "inputs": text, "num_hashes": 0}).json() for text in TEXTS]
    together = service.classify({"model": "tags", "inputs": TEXTS, "num_hashes": 0}).json()
    assert [each["predictions"][0] for each in alone] == together["predictions"]


def test_many_long_texts_are_answered_in_order(service: Service, here: LocalModel) -> None:
    texts = [f"{TEXTS[0]} " * (1 + number % 9) for number in range(64)]
    answer = service.classify({"model": "tags", "inputs": texts, "num_hashes": 0}).json()
    expected = here.classify(texts, num_hashes=0)
    assert answer["predictions"] == [
        prediction.model_dump(mode="json", exclude_none=True) for prediction in expected.predictions
    ]


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"aggregation": "sum"}, "aggregation", """is 'sum', must be "none", "simple", "first", "max" or "average\""""),
        ({"aggregation": None}, "aggregation", "is null"),
        ({"top_k": 1}, "top_k", "is 1, must be left out: model 'tags' answers the entities of a text"),
        ({"return_logits": True}, "return_logits", "is true, must be left out"),
        ({"explain": True}, "explain", "is true, must be left out"),
        ({"escalate": True, "min_agreement": 0.9}, "escalate", "is true, must be left out"),
        ({"keep": 0.5}, "keep", "has no knob keep"),
        ({"candidate_labels": ["a"]}, "candidate_labels", "natural language inference"),
        ({"inputs": [{"token_ids": [2, 3]}]}, "inputs[0].token_ids", "is token ids, must be a text"),
        ({"inputs": [{"text": "a", "text_pair": "b"}]}, "inputs[0].text", "is the first text of a pair"),
        ({"inputs": "good " * 9000}, "inputs", "must have at most 8192"),
        ({"model": "yoso", "aggregation": "first"}, "aggregation", "model 'yoso' classifies whole texts"),
    ],
)
def test_what_is_wrong_is_said(service: Service, fields: dict[str, Any], param: str, sentence: str) -> None:
    response = service.classify({"model": "tags", "inputs": "good", **fields})
    assert response.status_code == 422, response.text
    assert response.json()["param"] == param
    assert sentence in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"inputs": "good"}),
        ("/classify", {"input": "good"}),
        ("/v1/rerank", {"query": "good", "documents": ["bad"]}),
        ("/score", {"text_1": "good", "text_2": "bad"}),
        ("/v2/models/tags/infer", {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["good"]}]}),
    ],
)
def test_other_routes_refuse_it(service: Service, path: str, body: dict[str, Any]) -> None:
    named = body if path.startswith("/v2") else {"model": "tags", **body}
    response = service.client.post(path, json=named)
    assert response.status_code in (400, 422), response.text
    assert "which only POST /v1/classify can show" in response.text or path in ("/v1/rerank", "/score")
    assert "tags" in response.text
    assert service.client.get("/health/ready").status_code == 200


def test_generated_requests_are_answered_as_described(service: Service) -> None:
    description = service.client.get("/openapi.json").json()
    narrow = narrowed(description, service.client.get("/v1/models").json()["models"], "tags")
    narrow["paths"] = {"/v1/classify": narrow["paths"]["/v1/classify"]}
    fields = narrow["components"]["schemas"]["ClassifyRequest"]["properties"]
    for name in ("return_logits", "truncate"):
        del fields[name]
    fields["inputs"] = {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,9}$"}, "minItems": 1}
    counts = ask(service, narrow, 40, GenerationMode.POSITIVE)
    assert accepted(counts, "POST /v1/classify") > 0.75, counts


def test_the_command_shows_them_and_writes_them_into_files(folder: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "attenuator", "classify", str(folder), "--num-hashes", "0", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    entities = json.loads(run("--json", TEXTS[0]))["entities"]
    assert {"label", "score", "start", "end", "word"} == entities[0].keys()
    assert f"{entities[0]['label']} {entities[0]['word']}" in run(TEXTS[0])
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(f'text\n"{TEXTS[0]}"\n"x"\n')
    run("--input", str(source), "--output", str(output), "--aggregation", "simple")
    with output.open() as stream:
        rows = list(csv.DictReader(stream))
    assert json.loads(rows[0]["entities"]) == entities


def test_calibration_refuses_it(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text('{"text": "good"}\n' * 10)
    command = [sys.executable, "-m", "attenuator", "calibrate", str(folder), "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "classifies tokens, must classify whole texts to be calibrated" in done.stderr
