"""`token_type_ids` beside `token_ids`: pairs that the caller has tokenized, and what does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from onnx import helper
from service import Service

from attenuator import bundle
from attenuator.errors import BundleError
from attenuator.runtime import Model, load
from attenuator.runtime.check import check_bundle

PAIR = {"text": "good film", "text_pair": "bad plot"}
IDS = [2, 5, 3, 6, 3]


def post(service: Service, *inputs: Any, model: str = "mca", **fields: Any) -> tuple[int, dict[str, Any]]:
    response = service.classify({"model": model, "inputs": list(inputs), "return_logits": True, **fields})
    return response.status_code, response.json()


def test_ids_with_their_types_are_the_pair_they_come_from(service: Service, models: dict[str, Model]) -> None:
    encoded = models["mca"].encode(*PAIR.values())
    ids, types = encoded.token_ids.tolist(), encoded.type_ids.tolist()
    assert set(types) == {0, 1}
    whole = [float(one) for one in types]  # 1.0 is a whole number
    items = [
        PAIR,
        {"token_ids": ids},
        {"token_ids": ids, "token_type_ids": types},
        "good film",
        {"token_type_ids": whole, "token_ids": ids},
        {"token_ids": ids, "token_type_ids": [0] * len(ids)},
    ]
    status, answer = post(service, *items, alpha=0.5)
    assert status == 200, answer
    logits = [one["logits"] for one in answer["predictions"]]
    assert logits[0] == logits[2] == logits[4]
    assert logits[1] == logits[5] != logits[0]
    assert answer["tokens"] == [7, 7, 7, 4, 7, 7]
    for item, together in zip(items, logits, strict=True):
        status, alone = post(service, item, alpha=0.5)
        assert alone["predictions"][0]["logits"] == together


KINDS = 'must be a text, {"text": ..}, {"text": .., "text_pair": ..}, {"token_ids": [..]} or {"token_ids": [..], '
CASES: dict[str, tuple[Any, str, str]] = {
    "with a text": ({"text": "a", "token_type_ids": [0]}, "", f"has text and token_type_ids, {KINDS}"),
    "alone": ({"token_type_ids": [0]}, "", "has token_type_ids, must be"),
    "null": ({"token_ids": IDS, "token_type_ids": None}, ".token_type_ids", "is null, must be a list of whole numbers"),
    "a number": ({"token_ids": IDS, "token_type_ids": 0}, ".token_type_ids", "is 0, must be a list"),
    "none": ({"token_ids": IDS, "token_type_ids": []}, ".token_type_ids", "has 0, must have 5 token types"),
    "one fewer": (
        {"token_ids": IDS, "token_type_ids": [0] * 4},
        ".token_type_ids",
        "has 4, must have 5 token types, one for each token id",
    ),
    "one more": ({"token_ids": IDS, "token_type_ids": [0] * 6}, ".token_type_ids", "has 6, must have 5"),
    "outside": (
        {"token_ids": IDS, "token_type_ids": [0, 0, 1, 2, 1]},
        ".token_type_ids[3]",
        "is 2, must be whole numbers from 0 to 1",
    ),
    "negative": ({"token_ids": IDS, "token_type_ids": [-1, 0, 0, 0, 0]}, ".token_type_ids[0]", "is -1, must be"),
    "fraction": ({"token_ids": IDS, "token_type_ids": [0, 0.5, 0, 0, 0]}, ".token_type_ids[1]", "is 0.5, must be"),
    "boolean": ({"token_ids": IDS, "token_type_ids": [0, 0, 0, 0, True]}, ".token_type_ids[4]", "is true, must be"),
    "text": ({"token_ids": IDS, "token_type_ids": ["0"] * 5}, ".token_type_ids[0]", "is a text, must be"),
    "wrong id first": ({"token_ids": [999], "token_type_ids": [7]}, ".token_ids[0]", "is 999, must be"),
    "misspelt": ({"token_ids": IDS, "token_types": [0] * 5}, ".token_types", "has an unknown field 'token_types'"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_types_that_do_not_fit(service: Service, case: tuple[Any, str, str]) -> None:
    item, suffix, phrase = case
    status, answer = post(service, "good", item)
    assert (status, answer["param"]) == (422, f"inputs[1]{suffix}"), answer
    where = f"inputs[1]{suffix}" if answer["error_type"] == "invalid_request" else "inputs[1]"
    assert answer["error"].startswith(f"{where} {phrase}")
    assert answer["allowed"]


def test_as_many_values_as_any_request_needs_are_read(service: Service) -> None:
    status, answer = post(service, *[{"token_ids": IDS, "token_type_ids": [0, 0, 0, 1, 1]}] * 256, seed=1, top_k=1)
    assert status == 200, answer
    assert len({tuple(one["logits"]) for one in answer["predictions"]}) == 1


def test_the_description_has_them(service: Service) -> None:
    field = service.client.get("/openapi.json").json()["components"]["schemas"]["TokenInput"]["properties"]
    assert field["token_type_ids"]["type"] == "array"
    assert field["token_type_ids"]["items"] == field["token_ids"]["items"]


@pytest.fixture(scope="module")
def typeless(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose graph takes no token types."""
    folder = tiny.write(tmp_path_factory.mktemp("typeless") / "typeless", "softmax")
    model = onnx.load(folder / bundle.MODEL)
    [entry] = [entry for entry in model.graph.input if entry.name == "token_type_ids"]
    model.graph.input.remove(entry)
    model.graph.node.insert(0, helper.make_node("Sub", ["input_ids", "input_ids"], ["token_type_ids"]))
    onnx.save(model, folder / bundle.MODEL)
    with np.load(folder / bundle.PROBE) as arrays:
        kept = {name: array for name, array in arrays.items() if name != "token_type_ids"}
    np.savez(folder / bundle.PROBE, **kept)
    tiny.sign(folder, inputs=[entry.name for entry in model.graph.input])
    return folder


def test_a_model_without_types_takes_zeros_alone(typeless: Path, start_with: Callable[..., Service]) -> None:
    service = start_with([typeless])
    status, answer = post(
        service, {"token_ids": IDS}, {"token_ids": IDS, "token_type_ids": [0] * 5}, model="typeless", truncate=False
    )
    assert status == 200, answer
    assert answer["predictions"][0] == answer["predictions"][1]
    status, answer = post(service, {"token_ids": IDS, "token_type_ids": [0, 0, 0, 1, 1]}, model="typeless")
    assert (status, answer["param"]) == (422, "inputs[0].token_type_ids[3]")
    assert answer["error"] == "inputs[0].token_type_ids[3] is 1, must be 0: this model has no token types"


def test_a_bundle_may_have_more_types_and_no_more_than_its_table(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "old", "softmax")
    manifest = tiny.sign(folder, type_vocab_size=3)
    with pytest.raises(BundleError, match="fails on its last token id at its last position, as token type 2"):
        check_bundle(folder)
    text = (folder / bundle.MANIFEST).read_text().replace('  "type_vocab_size": 3,\n', "")
    (folder / bundle.MANIFEST).write_text(text)
    assert bundle.read_manifest(folder).token_types == 2  # as before the field
    model = load(folder)
    assert model.from_ids(IDS, [0, 0, 1, 1, 1]).type_ids.tolist() == [0, 0, 1, 1, 1]
    assert manifest.token_types == 3
