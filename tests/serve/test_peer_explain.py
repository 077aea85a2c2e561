"""`explain` and `escalate` on the routes of other servers: where their answers have room, and where they have none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service import Service

REVIEWS = Path(__file__).resolve().parents[2] / "examples" / "bundles" / "reviews"
TEXTS = ["a quiet moving film", "not good but never dull", "the plot was dull and i want it back " * 6]


@pytest.fixture(scope="module")
def reviews() -> Iterator[Service]:
    started = Service([REVIEWS])
    yield started
    assert started.stop() == 0, started.log()


def ok(service: Service, **fields: Any) -> dict[str, Any]:
    response = service.classify({"inputs": TEXTS, "return_logits": True, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_escalation_on_a_route_of_other_servers(reviews: Service) -> None:
    fields = {"num_hashes": 4, "escalate": True, "min_agreement": 0.9, "seed": 3}
    own = ok(reviews, **fields)
    tensor = {"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES", "data": list(TEXTS)}
    answer = reviews.client.post("/v2/models/reviews/infer", json={"inputs": [tensor], "parameters": fields}).json()
    for name in ("num_hashes", "chosen_by", "steps", "relative_cost"):
        assert answer["parameters"][name] == (own | own["knobs"])[name]
    logits = next(output["data"] for output in answer["outputs"] if output["name"] == "logits")
    assert logits == [value for each in own["predictions"] for value in each["logits"]]


@pytest.mark.parametrize(("hashes", "known"), [(16, True), (1, False)])
def test_an_explained_answer_of_the_open_inference_protocol(reviews: Service, hashes: int, known: bool) -> None:
    """Its outputs are those of the service's own answer; what is not known there is -1."""
    own = ok(reviews, num_hashes=hashes, explain=True, seed=3)
    tensor = {"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES", "data": list(TEXTS)}
    path, parameters = "/v2/models/reviews/infer", {"num_hashes": hashes, "seed": 3}
    fields = {"inputs": [tensor], "parameters": parameters | {"explain": True}}
    answer = reviews.client.post(path, json=fields).json()
    outputs = {output["name"]: output for output in answer["outputs"]}
    for name in ("agreement_probability", "standard_error"):
        expected = [each.get(name, -1) for each in own["predictions"]]
        assert outputs[name]["data"] == pytest.approx(expected, rel=1e-6)
        assert (outputs[name]["shape"], outputs[name]["datatype"]) == ([len(TEXTS)], "FP32")
    assert (-1 not in outputs["agreement_probability"]["data"]) == known
    assert answer["parameters"]["relative_cost"] == own["relative_cost"]
    some = reviews.client.post(path, json=fields | {"outputs": [{"name": "standard_error"}]}).json()["outputs"]
    assert some == [outputs["standard_error"]]
    plain = {"inputs": [tensor], "parameters": parameters}
    assert not {"agreement_probability", "standard_error"} & {
        output["name"] for output in reviews.client.post(path, json=plain).json()["outputs"]
    }
    refused = reviews.client.post(path, json=plain | {"outputs": [{"name": "standard_error"}]})
    assert "standard_error, which explained answers alone have: set explain in parameters" in refused.json()["error"]
    assert (refused.status_code, refused.json()["param"]) == (400, "outputs[0].name")


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/predict", {"inputs": "good film", "explain": True}, "explain"),
        ("/predict", {"inputs": "good film", "parameters": {"explain": True}}, "parameters.explain"),
        ("/classify", {"input": "good film", "model": "reviews", "explain": True}, "explain"),
    ],
    ids=["predict", "predict's parameters", "classify"],
)
def test_answers_without_room_for_it_are_not_explained(
    reviews: Service, path: str, body: dict[str, Any], place: str
) -> None:
    refused = reviews.client.post(path, json=body, headers={"Attenuator-Parameters": '{"num_hashes": 16}'})
    assert refused.status_code in (400, 422)
    assert f"{place} is not accepted here, where an answer has no room for how sure it is" in refused.text
    header = {"Attenuator-Parameters": '{"explain": true}'}
    body = {name: value for name, value in body.items() if name not in ("explain", "parameters")}
    assert "explain is not accepted here" in reviews.client.post(path, json=body, headers=header).text
