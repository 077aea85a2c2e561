"""Candidate labels on `POST /v1/classify`: the answers of `attenuator.load`, in the shape of any other, or a sentence.

That these are the scores of transformers' pipeline: tests/runtime/test_zero_shot.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calibrations
import pytest
import tiny
from schema_requests import accepted, ask, narrowed
from schemathesis.generation import GenerationMode
from service import Service

import attenuator
from attenuator.api import Classification
from attenuator.classify_request import MAX_PAIRS
from attenuator.clients import Client
from attenuator.errors import InvalidRequest
from attenuator.local import LocalModel
from attenuator.runtime.zero_shot import MAX_CHARACTERS

TEXTS = ["a very good film", "the contract shall renew", "bad plot", "law"]
LABELS = ["film", "law", "contract party", "party"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle with random weights and the labels of a model of natural language inference."""
    names = ("contradiction", "neutral", "entailment")
    return calibrations.promising(tiny.write(tmp_path_factory.mktemp("nli") / "nli", "yoso", labels=names))


@pytest.fixture(scope="module")
def nli(folder: Path, bundles: dict[str, Path]) -> Iterator[Service]:
    """A server of that and of classifiers."""
    started = Service([folder, bundles["yoso"], bundles["multi"]])
    yield started
    assert started.stop() == 0, started.log()


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[LocalModel]:
    with attenuator.load(folder, threads=2, check=False) as model:
        yield model


def answered(service: Service, **fields: Any) -> dict[str, Any]:
    response = service.classify({"model": "nli", "inputs": TEXTS, "candidate_labels": LABELS, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def refused(service: Service, **fields: Any) -> tuple[str, str]:
    body = {"model": "nli", "inputs": TEXTS, "candidate_labels": LABELS, **fields}
    response = service.classify({name: value for name, value in body.items() if value is not ...})
    assert response.status_code == 422, response.text
    return response.json()["param"], response.json()["error"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_hashes": 8, "seed": 7, "return_logits": True, "top_k": 2},
        {"multi_label": True, "return_logits": True},
        {"hypothesis_template": "was the {} good", "num_hashes": 0},
        {"min_agreement": 0.97},
        {"candidate_labels": ["film"]},
        {"candidate_labels": [f"{word} {other}" for word in tiny.WORDS for other in tiny.WORDS[:12]]},
    ],
    ids=str,
)
def test_answers_are_those_in_process(nli: Service, here: LocalModel, fields: dict[str, Any]) -> None:
    expected = here.classify(TEXTS, **{"candidate_labels": LABELS, **fields})
    with Client(f"http://{nli.host}:{nli.port}") as client:
        got = client.classify(TEXTS, model="nli", **{"candidate_labels": LABELS, **fields})
    without = {"timing_ms"}
    assert got.model_dump(exclude=without) == expected.model_dump(exclude=without)


def test_the_answer_has_the_shape_of_any_other(nli: Service) -> None:
    answer = answered(nli, num_hashes=8)
    assert Classification.model_validate(answer).columns().keys() == {"label", "score", "tokens"}
    assert len(answer["predictions"]) == len(answer["tokens"]) == len(TEXTS)
    pairs = [{"text": text, "text_pair": f"This example is {label}."} for text in TEXTS for label in LABELS]
    plain = nli.classify({"model": "nli", "inputs": pairs, "num_hashes": 8}).json()
    assert sum(answer["tokens"]) == sum(plain["tokens"])
    assert (answer["knobs"], answer["chosen_by"]) == (plain["knobs"], "caller")
    for prediction in answer["predictions"]:
        scores = prediction["scores"]
        assert {each["label"] for each in scores} == set(LABELS)
        assert scores == sorted(scores, key=lambda each: -each["score"])
        assert (prediction["label"], prediction["score"]) == (scores[0]["label"], scores[0]["score"])
    three = answered(nli, num_hashes=8, top_k=3)["predictions"]
    assert [each["scores"] for each in three] == [each["scores"][:3] for each in answer["predictions"]]


def test_many_inputs_each_alone_have_the_same_answers(nli: Service) -> None:
    with Client(f"http://{nli.host}:{nli.port}") as client:
        outcomes = client.classify_many(TEXTS, model="nli", candidate_labels=LABELS, num_hashes=8)
        alone = [outcome.result().model_dump(mode="json", exclude_none=True) for outcome in outcomes]
    predictions = answered(nli, num_hashes=8)["predictions"]
    assert [each["predictions"][0] for each in alone] == predictions


def test_as_many_labels_as_there_may_be(nli: Service) -> None:
    labels = [f"label {number}" for number in range(MAX_PAIRS)]
    [prediction] = answered(nli, inputs="good film", candidate_labels=labels)["predictions"]
    assert sum(each["score"] for each in prediction["scores"]) == pytest.approx(1)
    assert len(answered(nli, inputs=["good"] * 4, candidate_labels=labels[:250])["predictions"]) == 4
    param, sentence = refused(nli, inputs=["good"] * 4, candidate_labels=labels[:251])
    assert param == "candidate_labels"
    assert "has 251 items, which with 4 inputs make 1004 pairs, must be at most 250 texts" in sentence
    assert "has 1001 items, must have 1 to 1000" in refused(nli, candidate_labels=[*labels, "more"])[1]


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"candidate_labels": []}, "candidate_labels", "has 0 items, must have 1 to 1000"),
        ({"candidate_labels": ["law", " "]}, "candidate_labels[1]", "is empty"),
        ({"candidate_labels": ["law", "film", "law "]}, "candidate_labels[2]", "is the same as candidate_labels[0]"),
        ({"candidate_labels": "law, film"}, "candidate_labels", "is a text, must be a list of 1 to 1000 different"),
        ({"candidate_labels": ["law", 7]}, "candidate_labels", "has 7, must be a list"),
        ({"candidate_labels": ["law", "x" * 1001]}, "candidate_labels", "must be a list of 1 to 1000 different texts"),
        ({"candidate_labels": None}, "candidate_labels", "is null"),
        ({"candidate_labels": ..., "multi_label": True}, "candidate_labels", "is missing"),
        ({"candidate_labels": ..., "hypothesis_template": "a {}"}, "candidate_labels", "is missing"),
        ({"hypothesis_template": "no place"}, "hypothesis_template", "is 'no place', must be a text of at most 1000"),
        ({"hypothesis_template": "{} or {}"}, "hypothesis_template", "with one {} and no other brace"),
        ({"hypothesis_template": "{0} is"}, "hypothesis_template", "with one {} and no other brace"),
        ({"hypothesis_template": 3}, "hypothesis_template", "is 3"),
        ({"multi_label": 1}, "multi_label", "is 1, must be true or false"),
        ({"top_k": 5}, "top_k", "is 5, must be a whole number from 1 to 4"),
        ({"explain": True}, "explain", "is true, must be left out beside candidate_labels"),
        ({"escalate": True, "min_agreement": 0.9}, "escalate", "is true, must be left out beside candidate_labels"),
        ({"inputs": [{"token_ids": [2, 5]}]}, "inputs[0].token_ids", "is token ids, must be a text beside"),
        ({"inputs": ["a", {"text": "a", "text_pair": "b"}]}, "inputs[1].text", "is the first text of a pair"),
        ({"inputs": ["good", " "]}, "inputs[1]", "is empty"),
        ({"candidate_label": ["a"]}, "candidate_label", "did you mean candidate_labels"),
        (
            {"model": "yoso"},
            "candidate_labels",
            "is given, but model 'yoso' has the labels negative, neutral, positive: it must be a model of",
        ),
        ({"model": "multi"}, "candidate_labels", "clause 7, ..: it must be a model of natural language inference"),
        ({"inputs": ["good " * 9000]}, "inputs[0]", "must have at most 8192, candidate_labels[0] included"),
    ],
)
def test_what_is_wrong_is_said(nli: Service, fields: dict[str, Any], param: str, sentence: str) -> None:
    name, error = refused(nli, **fields)
    assert name == param
    assert sentence in error


def test_the_characters_of_all_pairs_have_a_limit(nli: Service, here: LocalModel) -> None:
    labels = [f"label {number}" for number in range(MAX_PAIRS // 2)]
    text = "good " * (MAX_CHARACTERS // len(labels) // 5 + 1)
    param, sentence = refused(nli, inputs=text, candidate_labels=labels, truncate=True)
    assert param == "inputs"
    assert f"must be at most {MAX_CHARACTERS // len(labels)} characters, which are read with each" in sentence
    with pytest.raises(InvalidRequest, match="must have at most 8192"):
        here.classify(text * 2, candidate_labels=labels[:1])


def test_other_routes_have_labels_of_the_model_alone(nli: Service) -> None:
    for path in ("/predict", "/classify"):
        body = {"input" if path == "/classify" else "inputs": "good film", "candidate_labels": LABELS}
        response = nli.client.post(path, json=body, headers={"Attenuator-Parameters": '{"model": "nli"}'})
        assert response.status_code in (400, 422)
        assert "candidate_labels" in response.text


def test_generated_requests_with_labels_are_answered_as_described(nli: Service) -> None:
    description = nli.client.get("/openapi.json").json()
    narrow = narrowed(description, nli.client.get("/v1/models").json()["models"], "nli", without=())
    narrow["paths"] = {"/v1/classify": narrow["paths"]["/v1/classify"]}
    request = narrow["components"]["schemas"]["ClassifyRequest"]
    request["required"] = [*request["required"], "candidate_labels"]
    request["properties"]["candidate_labels"] |= {"uniqueItems": True, "maxItems": 4}
    request["properties"]["candidate_labels"]["items"] |= {"pattern": r"^\w"}
    request["properties"]["inputs"]["anyOf"] = request["properties"]["inputs"]["anyOf"][:1]
    counts = ask(nli, narrow, 40, GenerationMode.POSITIVE)
    assert accepted(counts, "POST /v1/classify") > 0.75, counts
