"""The Open Inference Protocol: Triton's client against the service, and what it does not send."""

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import Request
from service import Service
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from attenuator.runtime import Model
from attenuator.serve.api.peers.openinference import Infer
from attenuator.serve.api.peers.tensors import flat
from attenuator.serve.api.schema import HEADER

TEXTS = ["good film", "the plot was not very good"]
MULTI = {"model": "multi", "num_hashes": 8, "seed": 5}
KNOBS = {"num_hashes": 8, "seed": 5}
PATH = "/v2/models/multi/infer"
TEXT = {"name": "text", "shape": [2], "datatype": "BYTES", "data": TEXTS}


@pytest.fixture
def client(service: Service) -> Iterator[triton.InferenceServerClient]:
    one = triton.InferenceServerClient(f"{service.host}:{service.port}")
    yield one
    one.close()


def own(service: Service, inputs: Any) -> list[dict[str, Any]]:
    """Predictions with every score and logit, by the service's own route."""
    body = {**MULTI, "inputs": inputs, "top_k": 33, "return_logits": True}
    return list(service.classify(body).json()["predictions"])


def tensor(name: str, values: list[Any], datatype: str, binary: bool = True) -> triton.InferInput:
    dtype: Any = {"BYTES": np.object_, "INT64": np.int64, "INT32": np.int32}[datatype]
    array = np.array(values, dtype)
    one = triton.InferInput(name, list(array.shape), datatype)
    one.set_data_from_numpy(array, binary_data=binary)
    return one


def test_tritons_client_with_nothing_but_its_defaults(service: Service, client: triton.InferenceServerClient) -> None:
    """Its texts go out as bytes after the JSON, and so do the outputs that come back."""
    answer = client.infer("multi", [tensor("text", TEXTS, "BYTES")], parameters=KNOBS, request_id="42")
    predictions = own(service, TEXTS)
    assert answer.as_numpy("label").tolist() == [each["label"].encode() for each in predictions]
    np.testing.assert_array_equal(answer.as_numpy("score"), np.float32([each["score"] for each in predictions]))
    logits = answer.as_numpy("logits")
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, np.float32([each["logits"] for each in predictions]))
    np.testing.assert_allclose(answer.as_numpy("probs"), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    metadata = client.get_model_metadata("multi")
    response = answer.get_response()
    assert response["model_name"] == "multi"
    assert (response["model_version"], response["id"]) == (metadata["versions"][0], "42")
    assert response["parameters"] == {**KNOBS, "chosen_by": "caller"}
    predicted = answer.as_numpy("predicted")
    assert predicted.shape == (2, 33)
    assert [int(row.sum()) for row in predicted] == [len(each["labels"]) for each in predictions]


def test_its_other_forms(service: Service, client: triton.InferenceServerClient) -> None:
    predictions = own(service, TEXTS)
    version = client.get_model_metadata("multi")["versions"][0]
    best = triton.InferRequestedOutput("probs", class_count=2)
    plain = triton.InferRequestedOutput("label", binary_data=False)
    answer = client.infer(
        "multi", [tensor("text", [[text] for text in TEXTS], "BYTES", False)], version, [best, plain], parameters=KNOBS
    )
    assert answer.as_numpy("label").tolist() == [each["label"] for each in predictions]
    value, place, label = answer.as_numpy("probs")[0, 0].decode().split(":")
    assert label == predictions[0]["label"]
    assert float(value) == pytest.approx(predictions[0]["score"], abs=1e-6)
    assert label.endswith(f" {place}")  # the labels of this bundle are numbered
    assert answer.as_numpy("probs").shape == (2, 2)
    assert answer.as_numpy("logits") is None


@pytest.mark.parametrize("datatype", ["INT64", "INT32"])
@pytest.mark.parametrize("binary", [True, False])
def test_token_ids_and_pairs(
    service: Service, client: triton.InferenceServerClient, datatype: str, binary: bool
) -> None:
    ids, types = [[2, 4, 3, 5], [2, 6, 3, 4]], [[0, 0, 0, 1], [0, 0, 0, 0]]
    inputs = [tensor("token_ids", ids, datatype, binary), tensor("token_type_ids", types, datatype, binary)]
    answer = client.infer("multi", inputs, parameters=KNOBS)
    rows = [{"token_ids": one, "token_type_ids": other} for one, other in zip(ids, types, strict=True)]
    logits = np.float32([each["logits"] for each in own(service, rows)])
    np.testing.assert_array_equal(answer.as_numpy("logits"), logits)
    pair = [tensor("text_pair", TEXTS[::-1], "BYTES", binary), tensor("text", TEXTS, "BYTES", binary)]
    pairs = [{"text": one, "text_pair": other} for one, other in zip(TEXTS, TEXTS[::-1], strict=True)]
    logits = np.float32([each["logits"] for each in own(service, pairs)])
    np.testing.assert_array_equal(client.infer("multi", pair, parameters=KNOBS).as_numpy("logits"), logits)


def test_what_its_client_asks_besides(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("multi")
    assert client.is_model_ready("multi", client.get_model_metadata("multi")["versions"][0])
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "attenuator"
    outputs = {each["name"]: each["shape"] for each in client.get_model_metadata("multi")["outputs"]}
    assert outputs == {"label": [-1], "score": [-1], "probs": [-1, 33], "logits": [-1, 33], "predicted": [-1, 33]}
    with pytest.raises(InferenceServerException, match="is not served"):
        client.get_model_config("multi")
    with pytest.raises(InferenceServerException, match="version '3' of model 'multi' is not served") as refused:
        client.infer("multi", [tensor("text", TEXTS, "BYTES")], "3")
    assert refused.value.status() == "404"
    assert client.infer("multi", [tensor("text", TEXTS, "BYTES")], priority=1).as_numpy("label").shape == (2,)
    for extra in ({"priority": -1}, {"sequence_id": 3}, {"request_compression_algorithm": "gzip"}):
        with pytest.raises(InferenceServerException) as refused:
            client.infer("multi", [tensor("text", TEXTS, "BYTES")], **extra)
        assert refused.value.status() == "400"
    with pytest.raises(InferenceServerException, match=r"no answer within 0\.001 ms \(parameters\.timeout\)"):
        client.infer("multi", [tensor("text", TEXTS, "BYTES")], timeout=1)


@pytest.mark.parametrize(
    ("priority", "expected"), [(0, None), (1, "interactive"), (2, "batch"), (9.0, "batch"), ("batch", "batch")]
)
def test_priorities_are_classes(models: dict[str, Model], priority: Any, expected: str | None) -> None:
    request = Request({"type": "http", "headers": []})
    parsed = Infer(request, "multi").request({"inputs": [TEXT], "parameters": {"priority": priority}}, models["multi"])
    assert parsed.options.priority == expected


def changed(**fields: Any) -> dict[str, Any]:
    """A good request with some fields of its input changed; `...` removes one."""
    return {"inputs": [{name: value for name, value in {**TEXT, **fields}.items() if value is not ...}]}


IDS = {"name": "token_ids", "shape": [1, 2], "datatype": "INT64", "data": [2, 3]}
REFUSED: dict[str, tuple[str | None, str, dict[str, Any]]] = {
    "no inputs": ("inputs", "is missing", {"inputs": ...}),
    "empty inputs": ("inputs", "has no tensor", {"inputs": []}),
    "input a text": ("inputs[0]", "must be an object", {"inputs": ["a"]}),
    "unknown": ("input", "did you mean inputs", {"input": []}),
    "unknown parameter": ("parameters.num_hash", "did you mean num_hashes", {"parameters": {"num_hash": 3}}),
    "knob": ("parameters.num_hashes", "from 0 to 512", {"parameters": {"num_hashes": 999}}),
    "knob a text": ("parameters.num_hashes", "is a text", {"parameters": {"num_hashes": "8"}}),
    "timeout": ("parameters.timeout", "microseconds", {"parameters": {"timeout": -1}}),
    "two timeouts": ("parameters.timeout_ms", "must be set once", {"parameters": {"timeout": 1000, "timeout_ms": 5}}),
    "parameters": ("parameters", "must be an object", {"parameters": []}),
    "other tensor": ("inputs[0].name", "text, text_pair", changed(name="attention_mask")),
    "no shape": ("inputs[0].shape", "is missing", changed(shape=...)),
    "wrong shape": ("inputs[0]", "has 2 values, must have 3", changed(shape=[3])),
    "wide shape": ("inputs[0].shape", "must be [inputs] or [inputs, 1]", changed(shape=[1, 2])),
    "shape beyond all numbers": ("inputs[0].shape", "1 to 2147483647", {"inputs": [IDS | {"shape": [256, 10**4299]}]}),
    "shape that multiplies": ("inputs[0]", "has 2 values", {"inputs": [IDS | {"shape": [256, 2147483647]}]}),
    "lists after values": ("inputs[0].data[1]", "must be a text", changed(data=["a", ["b"]])),
    "half of a pair in the id": ("id", "must be Unicode text", {"id": "a\ud800"}),
    "half of a pair in a name": ("outputs[0].a", "is unknown", {"outputs": [{"a\ud800": 1}]}),
    "empty shape": ("inputs[0].shape", "must be one or two", changed(shape=[])),
    "shape of zero": ("inputs[0].shape", "has 0, must be one or two whole numbers from 1", changed(shape=[0], data=[])),
    "shape below zero": ("inputs[0].shape", "has -1, must be one or two", changed(shape=[2, -1])),
    "shape of a fraction": ("inputs[0].shape", "has 1.5, must be one or two", changed(shape=[1.5])),
    "too many": ("inputs[0].shape", "has 257 items", changed(shape=[257], data=["a"] * 257)),
    "datatype": ("inputs[0].datatype", "must be BYTES", changed(datatype="INT64")),
    "other datatype": ("inputs[0].datatype", "BYTES for texts", changed(datatype="FP32")),
    "number as text": ("inputs[0].data[1]", "must be a text", changed(data=["a", 3])),
    "explain": ("parameters.explain", "or leave parameters.explain out", {"parameters": {"explain": True}}),
    "goal": ("parameters.min_agreement", "needs a calibration", {"parameters": {"min_agreement": 0.9}}),
    "priority": ("parameters.priority", "interactive or batch", {"parameters": {"priority": "soon"}}),
    "too long": ("text[1]", "or set parameters.truncate", changed(data=["a", "good " * 9000])),
    "empty in a pair": (
        "text_pair[1]",
        "is empty",
        {"inputs": [TEXT, TEXT | {"name": "text_pair", "data": ["a", ""]}]},
    ),
    "empty text": ("text[1]", "is empty", changed(data=["a", ""])),
    "no data": ("inputs[0]", "has neither", changed(data=...)),
    "data a text": ("inputs[0].data", "must be a list", changed(data="a")),
    "shared memory": (
        "inputs[0].parameters.shared_memory_region",
        "is unknown",
        changed(parameters={"shared_memory_region": "a"}),
    ),
    "bytes that are not there": (
        "inputs[0].parameters.binary_data_size",
        "at most the 0 that follow",
        changed(data=..., parameters={"binary_data_size": 9}),
    ),
    "twice": ("inputs", "text twice", {"inputs": [TEXT, TEXT]}),
    "text and ids": ("inputs", "has text and token_ids", {"inputs": [TEXT, IDS]}),
    "types alone": ("inputs", "has token_type_ids", {"inputs": [IDS | {"name": "token_type_ids"}]}),
    "rows": (
        "text_pair",
        "has 1 rows, must have 2",
        {"inputs": [TEXT, TEXT | {"name": "text_pair", "shape": [1], "data": ["a"]}]},
    ),
    "id outside": ("token_ids[0][1]", "is 99999", {"inputs": [IDS | {"data": [2, 99999]}]}),
    "other output": ("outputs[0].name", "label, score", {"outputs": [{"name": "text"}]}),
    "output of other models": ("outputs[0].name", "must be another of", {"outputs": [{"name": "predicted"}]}),
    "output twice": ("outputs[1].name", "must be another of", {"outputs": [{"name": "score"}] * 2}),
    "ranks of a score": (
        "outputs[0].parameters.classification",
        "must be for probs or logits",
        {"outputs": [{"name": "score", "parameters": {"classification": 1}}]},
    ),
    "no rank": (
        "outputs[0].parameters.classification",
        "above 0",
        {"outputs": [{"name": "probs", "parameters": {"classification": 0}}]},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(service: Service, case: str) -> None:
    param, part, fields = REFUSED[case]
    body = {name: value for name, value in {"inputs": [TEXT], **fields}.items() if value is not ...}
    answer = service.client.post("/v2/models/yoso/infer", content=json.dumps(body))
    error = answer.json()
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert part in error["error"]
    assert param in error["error"]


def sent(service: Service, body: dict[str, Any], tail: bytes, length: str | None = None) -> tuple[int, str]:
    """Sends a body with bytes after its JSON; returns status and error."""
    content = json.dumps(body).encode()
    headers = {"Inference-Header-Content-Length": str(len(content)) if length is None else length}
    headers["Content-Type"] = "application/octet-stream"
    answer = service.client.post(PATH, content=content + tail, headers=headers)
    return answer.status_code, answer.text


def test_bytes_after_the_json_that_do_not_fit_are_refused(service: Service) -> None:
    def binary(size: int, count: int = 1) -> dict[str, Any]:
        return changed(shape=[count], data=..., parameters={"binary_data_size": size})

    good = struct.pack("<I", 4) + b"good"
    ids = {**IDS, "parameters": {"binary_data_size": 7}}
    del ids["data"]
    outputs = {"outputs": [{"name": "label"}]}
    assert sent(service, binary(8) | outputs, good)[0] == 200
    wrong: list[tuple[tuple[int, str], str]] = [
        (sent(service, binary(8), good + b"x"), "1 bytes after its last tensor"),
        (sent(service, binary(9), good), "at most the 8 that follow"),
        (sent(service, binary(7), good[:7]), "ends after the 7 bytes"),
        (sent(service, binary(2), good[:2]), "ends after the 2 bytes"),
        (sent(service, binary(8, 2), good), "has 1 values, must have 2"),
        (sent(service, binary(40), bytes(40)), "has more than 1 values"),
        (sent(service, binary(6), struct.pack("<I", 2) + b"\xff\xfe"), "is not UTF-8"),
        (sent(service, binary(8), good, "x"), "must be a number of bytes"),
        (sent(service, binary(8), good, "9999"), "at most the"),
        (sent(service, binary(8), good, "3"), "is not JSON"),
        (sent(service, changed(parameters={"binary_data_size": 8}), good), "has both"),
        (sent(service, {"inputs": [ids]}, bytes(7)), "8 bytes for each value"),
    ]
    for (status, text), part in wrong:
        assert status == 400, text
        assert part in json.loads(text)["error"]
    lengths = [("Inference-Header-Content-Length", length) for length in ("2", "3")]
    answer = service.client.post(PATH, content=b"{} ", headers=lengths)
    assert (answer.status_code, answer.json()["error"].endswith("is there 2 times, must be there once")) == (400, True)
    answer = service.client.post(PATH, content=b"{}", headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code == 415


def test_long_flat_data_is_not_gone_through() -> None:
    """Two million numbers fit into a body; the event loop looks at the first one."""

    class Opaque(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("the values were gone through")

    data = Opaque([1, 2])
    assert flat(data, "data") is data
    assert flat([[1, 2], [3], 4], "data") == [1, 2, 3, 4]


def test_goals_and_knobs_by_the_header(service: Service) -> None:
    answer = service.client.post("/v2/models/yoso/infer", json={"inputs": [TEXT]}, headers={HEADER: '{"seed": 9}'})
    assert answer.json()["parameters"]["seed"] == 9
    answer = service.client.post("/v2/models/yoso/infer", json={"inputs": [TEXT], "parameters": {"min_agreement": 0.9}})
    assert (answer.status_code, answer.json()["error_type"]) == (400, "not_calibrated")


@pytest.mark.parametrize("seed", range(2))
def test_no_mutation_of_a_binary_body_is_a_server_error(service: Service, seed: int) -> None:
    draw = random.Random(seed)
    statuses = set()
    for _ in range(100):
        count = draw.randint(1, 3)
        texts = [draw.randbytes(draw.randint(0, 6)) if draw.random() < 0.2 else b"good film" for _ in range(count)]
        tail = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        body = changed(shape=[count], data=..., parameters={"binary_data_size": len(tail)})
        content = json.dumps(body).encode()
        data = bytearray(content + tail)
        for _ in range(draw.choice([0, 0, 1, 3])):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 4)] = draw.randbytes(draw.randint(0, 4))
        headers = {"Inference-Header-Content-Length": str(len(content) + draw.choice([0, 0, 0, -1, 2]))}
        answer = service.client.post(PATH, content=bytes(data), headers=headers)
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400), (bytes(data), answer.text)
    assert statuses == {200, 400}
