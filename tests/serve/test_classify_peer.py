"""POST /classify, in the form of vLLM."""

import json
from typing import Any

import pytest
from fastapi import Request
from service import Service

from attenuator.runtime import Model
from attenuator.serve.api.peers.forms import RESULT_HEADER
from attenuator.serve.api.peers.vllm import Classify
from attenuator.serve.api.schema import HEADER

TEXTS = ["good film", "the plot was not very good"]
MULTI = {"model": "multi", "num_hashes": 8, "seed": 5}


def classify(service: Service, **fields: Any) -> dict[str, Any]:
    answer = service.client.post("/classify", json={**MULTI, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def own(service: Service, inputs: Any) -> list[dict[str, Any]]:
    """Predictions with every score and logit, by the service's own route."""
    body = {**MULTI, "inputs": inputs, "top_k": 33, "return_logits": True}
    return list(service.classify(body).json()["predictions"])


def labels(service: Service) -> list[str]:
    models = service.client.get("/v1/models").json()["models"]
    return next(list(model["labels"]) for model in models if model["name"] == "multi")


def test_answer_has_the_scores_of_the_own_route_in_label_order(service: Service) -> None:
    answer = classify(service, input=TEXTS, request_id="r-7", user="someone")
    assert (answer["id"], answer["object"], answer["model"]) == ("classify-r-7", "list", "multi")
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    for entry, prediction in zip(answer["data"], own(service, TEXTS), strict=True):
        scores = {row["label"]: row["score"] for row in prediction["scores"]}
        assert entry["probs"] == [scores[label] for label in labels(service)]
        assert (entry["label"], entry["num_classes"]) == (prediction["label"], 33)
    tokens = sum(service.classify({**MULTI, "inputs": TEXTS}).json()["tokens"])
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def test_every_shape_of_input(service: Service) -> None:
    one, many = own(service, [{"token_ids": [2, 4, 3]}]), own(service, [{"token_ids": [2, 4, 3]}, {"token_ids": [2]}])
    text = own(service, TEXTS[0])
    for value, predictions in [
        (TEXTS[0], text),
        (TEXTS[:1], text),
        ([2, 4, 3], one),
        ([[2, 4, 3]], one),
        ([[2, 4, 3], [2]], many),
    ]:
        data = classify(service, input=value, use_activation=False)["data"]
        assert [entry["probs"] for entry in data] == [prediction["logits"] for prediction in predictions]
    assert classify(service, input=[2, 4, 3], add_special_tokens=False)["data"]


def test_knobs_in_the_body_or_the_header(service: Service) -> None:
    body = {"model": "yoso", "input": "good"}
    for fields, headers in (({"num_hashes": 3}, {}), ({}, {HEADER: '{"num_hashes": 3}'})):
        answer = service.client.post("/classify", json=body | fields, headers=headers)
        assert json.loads(answer.headers[RESULT_HEADER])["knobs"] == {"num_hashes": 3}


def test_long_texts_are_cut_to_the_models_length(service: Service) -> None:
    long = "good film " * 5000
    for tokens in (-1, 8192):
        assert classify(service, input=long, truncate_prompt_tokens=tokens, truncation_side="right")["usage"] == {
            "prompt_tokens": 8192,
            "total_tokens": 8192,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }


@pytest.mark.parametrize(
    ("priority", "expected"), [(0, None), (-1, "interactive"), (1, "batch"), ("interactive", "interactive")]
)
def test_priorities_are_classes(models: dict[str, Model], priority: Any, expected: str | None) -> None:
    request = Request({"type": "http", "headers": []})
    parsed = Classify(request).request({"input": TEXTS[0], "priority": priority}, models["multi"])
    assert parsed.options.priority == expected


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "missing": ("input", "is missing", {"input": ...}),
    "own name": ("inputs", "did you mean input?", {"inputs": "a"}),
    "number": ("input", "has 0 items", {"input": []}),
    "object": ("input", "an object", {"input": {"text": "a"}}),
    "object in a list": ("input[1]", "an object", {"input": ["a", {"text": "a"}]}),
    "boolean in a list": ("input[0]", "is true", {"input": [True]}),
    "empty text": ("input[1]", "is empty", {"input": ["a", ""]}),
    "no ids": ("input[0]", "is empty", {"input": [[]]}),
    "id outside": ("input[1]", "is 99999999", {"input": [2, 99999999]}),
    "text among ids": ("input[1]", "is a text", {"input": [2, "a"]}),
    "too long": ("input", "at most 8192, or set truncate_prompt_tokens", {"input": "good " * 9000}),
    "truncation": ("truncate_prompt_tokens", "must be -1 or 8192", {"truncate_prompt_tokens": 16}),
    "huge truncation": ("truncate_prompt_tokens", "more than 18 digits", {"truncate_prompt_tokens": 10**4000}),
    "side": ("truncation_side", "must be right", {"truncation_side": "left"}),
    "side's value": ("truncation_side", "is 'both', must be left or right", {"truncation_side": "both"}),
    "side's long value": ("truncation_side", f"is '{'b' * 39}\u2026', must be", {"truncation_side": "b" * 10**6}),
    "side in control characters": ("truncation_side", "is 'a', must be", {"truncation_side": "a\x07"}),
    "side's type": ("truncation_side", "is a list, must be", {"truncation_side": ["left"]}),
    "special tokens": ("add_special_tokens", "must be true for texts", {"add_special_tokens": False}),
    "request id": ("request_id", "is 'a b', must be a text of at most 128 visible ASCII", {"request_id": "a b"}),
    "priority": ("priority", "or a whole number", {"priority": True}),
    "priority's name": ("priority", "is 'soon', must be interactive or batch, or a", {"priority": "soon"}),
    "no room": ("top_k", "is unknown", {"top_k": 1}),
    "knob": ("num_hashes", "from 0 to 512", {"num_hashes": True}),
    "timeout": ("timeout_ms", "above 0", {"timeout_ms": 0}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(service: Service, case: str) -> None:
    param, part, fields = REFUSED[case]
    body = {"model": "yoso", "input": "good film", **fields}
    answer = service.client.post("/classify", json={name: value for name, value in body.items() if value is not ...})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, param)
    assert part in error["message"]
    assert param in error["message"]


def test_what_is_no_object_is_told_the_form_of_this_route(service: Service) -> None:
    assert service.client.post("/classify", json=["a"]).json()["error"]["allowed"] == '{"input": ..}'
