"""POST /predict and GET /info, in the form of text-embeddings-inference; Hugging Face's client against them."""

import json
from typing import Any

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from service import Service

from attenuator.serve.api.peers.forms import RESULT_HEADER
from attenuator.serve.api.schema import HEADER

TEXTS = ["good film", "the plot was not very good"]
MULTI = {"model": "multi", "num_hashes": 8, "seed": 5}


def best(service: Service, inputs: Any, **fields: Any) -> list[list[dict[str, Any]]]:
    """Every label with its score, by the service's own route."""
    answer = service.classify({**MULTI, "inputs": inputs, "top_k": 33, **fields}).json()
    return [prediction["scores"] for prediction in answer["predictions"]]


def predict(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    answer = service.client.post("/predict", json={**MULTI, **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_shape_of_inputs_gives_the_scores_of_the_own_route(service: Service) -> None:
    [first], [second] = best(service, TEXTS[0]), best(service, TEXTS[1])
    pair = best(service, [{"text": TEXTS[0], "text_pair": TEXTS[1]}])[0]
    assert first != second != pair
    assert predict(service, inputs=TEXTS[0]) == first
    assert predict(service, inputs=TEXTS[:1]) == first
    assert predict(service, inputs=TEXTS) == pair
    assert predict(service, inputs=[TEXTS[1:], TEXTS]) == [second, pair]
    assert predict(service, inputs=[TEXTS[:1]]) == [first]
    assert [row["score"] for row in first] == sorted((row["score"] for row in first), reverse=True)
    assert len(first) == 33


def test_raw_scores_are_the_logits(service: Service) -> None:
    own = service.classify({**MULTI, "inputs": TEXTS[0], "return_logits": True}).json()["predictions"][0]["logits"]
    labels = next(m for m in service.client.get("/v1/models").json()["models"] if m["name"] == "multi")["labels"]
    raw = predict(service, inputs=TEXTS[0], raw_scores=True)
    assert {row["label"]: row["score"] for row in raw} == dict(zip(labels, own, strict=True))
    assert [row["score"] for row in raw] == sorted(own, reverse=True)


def test_knobs_come_in_body_parameters_or_header(service: Service) -> None:
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"num_hashes": 3}, {}),
        ({"parameters": {"num_hashes": 3}}, {}),
        ({}, {HEADER: json.dumps({"num_hashes": 3})}),
    ]
    for body, headers in ways:
        answer = service.client.post("/predict", json={"model": "yoso", "inputs": "good", **body}, headers=headers)
        result = json.loads(answer.headers[RESULT_HEADER])
        assert (result["model"], result["knobs"], result["chosen_by"]) == ("yoso", {"num_hashes": 3}, "caller")
    assert "x-inference-time" in answer.headers
    default = service.client.post("/predict", json={"inputs": "good"}, headers={HEADER: '{"model": "softmax"}'})
    assert json.loads(default.headers[RESULT_HEADER])["model"] == "softmax"


REFUSED: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "three texts": ("inputs", "texts of a batch are in a list each", {"inputs": ["a", "b", "c"]}, {}),
    "empty list": ("inputs", "must have 1 to 256", {"inputs": []}, {}),
    "too many": ("inputs", "has 257 items", {"inputs": [["a"]] * 257}, {}),
    "number": ("inputs", "inputs is 3", {"inputs": 3}, {}),
    "number in a pair": ("inputs[1][0]", "is 3", {"inputs": [["a"], [3]]}, {}),
    "empty text": ("inputs", "is empty", {"inputs": " "}, {}),
    "first of a pair": ("inputs[0][0]", "is empty", {"inputs": [["", "a"]]}, {}),
    "pair too long": ("inputs[0]", "at most 8192", {"inputs": [["good " * 5000, "good " * 5000]]}, {}),
    "empty in a pair": ("inputs[0][1]", "is empty", {"inputs": [["a", ""]]}, {}),
    "missing": ("inputs", "is missing", {"inputs": ...}, {}),
    "no model": ("model", f"in the body and in the header {HEADER}, must be one of yoso", {"model": ...}, {}),
    "unknown": ("raw_score", "did you mean raw_scores", {"raw_score": True}, {}),
    "field of the own route": ("top_k", "is unknown", {"top_k": 1}, {}),
    "wrong type": ("raw_scores", "true or false", {"raw_scores": 1}, {}),
    "knob": ("num_hashes", "from 0 to 512", {"num_hashes": 999}, {}),
    "too long": ("inputs", "must have at most 8192", {"inputs": "good " * 9000}, {}),
    "other side": ("truncation_direction", "must be right", {"truncation_direction": "Left"}, {}),
    "parameters": ("parameters", "must be an object", {"parameters": 3}, {}),
    "unknown parameter": ("parameters.top", "did you mean top_k", {"parameters": {"top": 1}}, {}),
    "top_k": ("parameters.top_k", "from 1 to 3", {"parameters": {"top_k": 4}}, {}),
    "activation": (
        "parameters.function_to_apply",
        "none or softmax",
        {"parameters": {"function_to_apply": "sigmoid"}},
        {},
    ),
    "half of a pair": ("degradable_to.a", "not a knob", {"degradable_to": {"a\ud800": 1}}, {}),
    "twice": ("seed", "set in the body and in the header", {"seed": 1}, {HEADER: '{"seed": 1}'}),
    "header's knob": (f"{HEADER}.num_hashes", "from 0 to 512", {}, {HEADER: '{"num_hashes": -1}'}),
    "header's field": (f"{HEADER}.raw_scores", "is unknown", {}, {HEADER: '{"raw_scores": true}'}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(service: Service, case: str) -> None:
    param, part, fields, headers = REFUSED[case]
    body = {"model": "yoso", "inputs": "good film", **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    answer = service.client.post("/predict", content=json.dumps(body), headers=headers)
    error = answer.json()
    assert (answer.status_code, error["error_type"], error["param"]) == (422, "Validation", param), answer.text
    assert part in error["error"]
    assert param in error["error"]


@pytest.mark.parametrize("value", ["", "num_hashes=3", "[1]", '{"seed": 1', '{"seed": 1, "seed": 1}', "{}\u00ff"])
def test_header_that_is_no_object_is_refused(service: Service, value: str) -> None:
    headers = {HEADER.encode(): value.encode("latin-1")}
    answer = service.client.post("/predict", json={"model": "yoso", "inputs": "good"}, headers=headers)
    assert answer.status_code in (400, 422)
    assert HEADER in answer.json()["error"]
    twice = [(HEADER, "{}"), (HEADER, "{}")]
    assert service.client.post("/predict", json={"inputs": "good"}, headers=twice).status_code == 400


def test_the_own_route_refuses_the_header(service: Service) -> None:
    answer = service.client.post("/v1/classify", json={**MULTI, "inputs": "good"}, headers={HEADER: '{"seed": 1}'})
    assert (answer.status_code, answer.json()["param"]) == (422, HEADER)


def test_long_inputs_are_cut_where_that_is_asked_for(service: Service) -> None:
    long = "good film " * 5000
    cut = predict(service, inputs=long, truncate=True, truncation_direction="Right")
    assert cut == best(service, long, truncate=True)[0]


def test_info(service: Service) -> None:
    answer = service.client.get("/info", headers={HEADER: '{"model": "yoso"}'})
    assert answer.json()["model_type"]["classifier"]["id2label"] == {"0": "negative", "1": "neutral", "2": "positive"}
    assert answer.json()["max_input_length"] == 8192
    refused = service.client.get("/info")
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")


class TestHuggingFaceClient:
    def test_text_classification(self, service: Service) -> None:
        url = f"http://{service.host}:{service.port}/predict"
        headers = {HEADER: json.dumps(MULTI)}
        answer = InferenceClient(model=url, headers=headers, token="not-checked-here").text_classification(TEXTS[0])
        assert [(each.label, each.score) for each in answer] == [
            (row["label"], row["score"]) for row in best(service, TEXTS[0])[0]
        ]

    def test_its_parameters(self, service: Service) -> None:
        url = f"http://{service.host}:{service.port}/predict"
        client = InferenceClient(base_url=url, headers={HEADER: json.dumps(MULTI)}, token="not-checked-here")
        raw = predict(service, inputs=TEXTS[0], raw_scores=True)[:4]
        answer = client.text_classification(TEXTS[0], top_k=4, function_to_apply="none")
        assert [(each.label, each.score) for each in answer] == [(row["label"], row["score"]) for row in raw]
        assert client.text_classification(TEXTS[0], function_to_apply="sigmoid")[0].label
        with pytest.raises(HfHubHTTPError) as refused:
            client.text_classification(TEXTS[0], top_k=34)
        assert "top_k is 34, must be a whole number from 1 to 33" in str(refused.value)
