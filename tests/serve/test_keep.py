"""Two knobs over HTTP, one of which chooses tokens: mixed in one batch, refused, limited by cost, in the schema."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from service import Service

from attenuator.__main__ import main
from attenuator.bundle import MODEL, read_manifest
from attenuator.clients import AsyncClient, Client
from attenuator.errors import KnobOutOfRange
from attenuator.runtime import Model, Row, create, load
from attenuator.runtime.batch import pack
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work
from attenuator.serve.models.warmup import rows_of

TEXT = "good film but a bad plot and the actor was not very good " * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("bundles") / "keep", "keep", pooling="mean")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder, check=False)


@pytest.fixture(scope="module")
def two_knobs(folder: Path) -> Iterator[Service]:
    started = Service([folder])
    yield started
    assert started.stop() == 0, started.log()


def core(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the company."""
    return {name: value for name, value in answer.items() if name != "timing_ms"}


def test_settings_of_both_knobs_mix_in_a_batch_and_answer_as_alone(two_knobs: Service) -> None:
    draw = random.Random(4)
    bodies = [
        {
            "inputs": [" ".join(draw.choices(tiny.WORDS, k=length)) for length in (1, 9, draw.choice([60, 300]))],
            "keep": draw.choice([0.05, 0.25, 0.3, 0.5, 0.99, 1]),
            "alpha": draw.choice([0, 0.2, 1]),
            "seed": draw.randrange(2**53),
            "return_logits": True,
        }
        for _ in range(24)
    ]
    alone = [core(two_knobs.classify(body).json()) for body in bodies]
    assert len({json.dumps(answer["predictions"]) for answer in alone}) == len(bodies)
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(two_knobs.classify, bodies))
    assert [core(answer.json()) for answer in answers] == alone


def test_a_knob_that_is_not_set_has_its_default(two_knobs: Service) -> None:
    answer = two_knobs.classify({"inputs": TEXT, "keep": 0.5}).json()
    assert (answer["knobs"], answer["requested"]) == ({"alpha": 0.2, "keep": 0.5}, {"keep": 0.5})
    assert two_knobs.classify({"inputs": TEXT}).json()["knobs"] == {"alpha": 0.2, "keep": 1.0}


@pytest.mark.parametrize(
    ("value", "shown"),
    [("0", "0"), ("0.04", "0.04"), ("1.01", "1.01"), ('"0.5"', "a text"), ("true", "true"), ("null", "null")],
)
def test_other_values_are_refused_by_name(two_knobs: Service, value: str, shown: str) -> None:
    body = f'{{"inputs": "good film", "alpha": 0.5, "keep": {value}}}'.encode()
    response = two_knobs.client.post("/v1/classify", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    error = response.json()
    assert error["error"] == f"keep is {shown}, must be a number from 0.05 to 1"
    assert (error["error_type"], error["param"]) == ("knob_out_of_range", "keep")
    assert error["allowed"] == "a number from 0.05 to 1"


def test_no_number_is_no_json(two_knobs: Service) -> None:
    body = b'{"inputs": "good film", "keep": NaN}'
    response = two_knobs.client.post("/v1/classify", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert "NaN" in response.json()["error"]


def test_models_and_schema_have_both(two_knobs: Service) -> None:
    [listed] = two_knobs.client.get("/v1/models").json()["models"]
    knobs = {knob["name"]: knob for knob in listed["knobs"]}
    assert list(knobs) == ["alpha", "keep"]
    assert {name: knobs["keep"][name] for name in ("low", "high", "exact", "default", "accuracy")} == {
        "low": 0.05,
        "high": 1.0,
        "exact": 1.0,
        "default": 1.0,
        "accuracy": "rises",
    }
    schema = json.dumps(two_knobs.client.get("/openapi.json").json())
    assert knobs["keep"]["doc"] in schema


def test_clients_take_both_and_check_before_they_send(two_knobs: Service) -> None:
    url = f"http://{two_knobs.host}:{two_knobs.port}"
    with Client(url) as client:
        answer = client.classify(TEXT, keep=0.25, alpha=1)
        assert answer.knobs == {"alpha": 1.0, "keep": 0.25}

    async def awaited() -> dict[str, float]:
        async with AsyncClient(url) as asynchronous:
            return dict((await asynchronous.classify(TEXT, keep=0.25, alpha=1)).knobs)

    assert asyncio.run(awaited()) == answer.knobs
    with Client("http://127.0.0.1:9") as nobody, pytest.raises(KnobOutOfRange, match=r"^keep is 0\.04, must be"):
        nobody.classify(TEXT, keep=0.04)


def test_the_command_takes_both(folder: Path, two_knobs: Service, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://{two_knobs.host}:{two_knobs.port}"
    outputs = []
    for source in (["--bundle", str(folder)], ["--url", url]):
        assert main(["classify", *source, "--keep", "0.5", "--alpha", "1", "--logits", "--json", TEXT]) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0]["knobs"] == {"alpha": 1.0, "keep": 0.5}
    assert outputs[0]["logits"] == outputs[1]["logits"]
    with pytest.raises(SystemExit) as ending:
        main(["classify", "--bundle", str(folder), "--keep", "1.5", TEXT])
    assert ending.value.code == 2
    assert "--keep is 1.5, must be a number from 0.05 to 1" in capsys.readouterr().err


def test_the_limit_on_cost_counts_the_tokens_that_go_on(
    start_with: Callable[..., Service], folder: Path, model: Model
) -> None:
    tokens = len(model.encode(TEXT).token_ids)
    costs = {keep: model.predict_cost(tokens, {"keep": keep, "alpha": 0.2}) for keep in (0.25, 0.5, 1.0)}
    limit = costs[0.5] / 1e9
    service = start_with([folder], "--max-cost", f"{limit}")
    assert service.classify({"inputs": TEXT, "keep": 0.25}).status_code == 200
    assert service.classify({"inputs": TEXT, "keep": 0.5}).status_code == 200
    refused = service.classify({"inputs": TEXT})
    assert refused.status_code == 422
    error = refused.json()
    assert "the cheapest setting that fits is keep 0.05, the most accurate keep 0.5" in error["error"]
    assert (error["param"], error["allowed"]) == ("keep", "keep from 0.05 to 0.5")


def test_warm_up_runs_every_token(model: Model) -> None:
    assert {row.knobs["keep"] for row in rows_of(model, 10_000)} == {1.0}
    assert {row.knobs["alpha"] for row in rows_of(model, 10_000)} == {0.2}


@pytest.mark.parametrize("keep", [0.05, 0.3, 1.0])
def test_predicted_rows_are_those_that_the_session_computes(folder: Path, tmp_path: Path, keep: float) -> None:
    graph = onnx.load(folder / MODEL)
    [name] = [node.output[0] for node in graph.graph.node if node.op_type == "KeptLengths"]
    graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT32, ["B + 1"]))
    onnx.save(graph, tmp_path / MODEL)
    ids = np.arange(300) % len(tiny.VOCAB)
    lengths = (1, 2, 19, 100, 300)
    rows = [Row(ids[:tokens], ids[:tokens] * 0, {"keep": keep, "alpha": 0.5}) for tokens in lengths]
    [boundaries] = create(tmp_path / MODEL).run([name], pack(rows, read_manifest(folder)))
    work = count_work(read_graph(folder / MODEL))
    assert [work.rows(tokens, {"keep": keep})[1] for tokens in lengths] == np.diff(boundaries).tolist()
