"""A knob is a row in a spec: from there two of them, and a third beside, reach everything. Run by test_two_knobs.py."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny
from cases import defaults, make_inputs, run_case
from harness import offsets, run
from service import Service

from attenuator import ops
from attenuator.__main__ import main
from attenuator.clients import Client
from attenuator.errors import BundleError, KnobOutOfRange, UnknownField
from attenuator.ops.codegen import header
from attenuator.runtime import KnobTable, Model, Row, load
from two_knobs.bundle import write
from two_knobs.reference import blend_rows
from two_knobs.spec import SPEC

TEXT = "good film but a bad plot and the actor was not very good"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    return {"new": write(root / "new"), "old": write(root / "old", later=False)}


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, Model]:
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def client(folders: dict[str, Path]) -> Iterator[Client]:
    service = Service(folders.values())
    with Client(f"http://{service.host}:{service.port}") as http_client:
        yield http_client
    assert service.stop() == 0, service.log()


def logits(model: Model, seed: int = 0, **knobs: float) -> np.ndarray:
    encoded = model.encode(TEXT)
    [result] = model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.check(knobs), seed)])
    return result.logits


def test_the_word_that_two_operators_share_is_one_knob() -> None:
    assert {"alpha", "num_hashes", "keep", "reach"} <= set(ops.KNOBS)
    owners = [operator.key for operator in ops.OPERATORS if "alpha" in {knob.name for knob in operator.knobs}]
    assert owners == ["mca", "two_knobs"]
    assert "Bounds the expected error" in ops.KNOBS["alpha"].doc
    assert "blended in" in ops.KNOBS["alpha"].doc


def test_the_header_has_both() -> None:
    struct = header().split("struct BlendRows {")[1]
    assert 'Knob<std::int32_t> kReach{"reach", 0, 64, 2, 0}' in struct
    assert 'Knob<float> kAlpha{"alpha", 0.0f, 1.0f, 0.5f, 0.0f}' in struct


def test_the_operator_equals_its_reference() -> None:
    inputs = {
        "value": np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32),
        "cu_seqlens": offsets([4, 0, 20, 6]),
        "reach": np.array([0, 1, 3, 64], np.int32),
        "alpha": np.array([0.0, 1.0, 0.25, 1.0], np.float32),
    }
    np.testing.assert_allclose(run("two_knobs", inputs, {})[0], blend_rows(**inputs), atol=1e-6)


def test_a_node_without_the_later_knob_computes_its_exact_value() -> None:
    old = defaults(SPEC)
    inputs = make_inputs(old, (5, 0, 9))
    assert "alpha" not in inputs
    exact = inputs | {"alpha": np.zeros(3, np.float32)}
    assert run("two_knobs", exact, {})[0].tobytes() == run_case(old, inputs)[0].tobytes()


def test_a_bundle_has_the_knobs_of_all_its_operators(models: dict[str, Model]) -> None:
    model = models["new"]
    assert model.knobs.names == ["reach", "alpha", "num_hashes"]
    assert model.knobs.exact() == {"reach": 0, "alpha": 0.0, "num_hashes": 0}
    knobs = {"reach": 1, "alpha": 0.75, "num_hashes": 4}
    answers = {name: logits(model, **model.knobs.exact() | {name: value}) for name, value in knobs.items()}
    answers["exact"] = logits(model, **model.knobs.exact())
    assert len({answer.tobytes() for answer in answers.values()}) == 4, "each knob matters, whatever the others"


def test_a_batch_mixes_settings_of_every_knob(models: dict[str, Model]) -> None:
    model = models["new"]
    encoded = model.encode(TEXT)
    rows = [
        Row(encoded.token_ids, encoded.type_ids, model.knobs.check({"reach": r, "alpha": a, "num_hashes": m}), seed=m)
        for r in (0, 3)
        for a in (0.0, 0.5)
        for m in (0, 8)
    ]
    for row, together in zip(rows, model.run(rows), strict=True):
        assert np.array_equal(model.run([row])[0].logits, together.logits)


def test_a_bundle_from_before_a_knob_loads_with_its_exact_value(models: dict[str, Model]) -> None:
    old, new = models["old"], models["new"]
    assert old.knobs.names == ["reach", "num_hashes"]
    for knobs in ({"reach": 0, "num_hashes": 0}, {"reach": 2, "num_hashes": 16}):
        assert np.array_equal(logits(old, **knobs), logits(new, **knobs, alpha=0.0))
    assert old.predict_cost(100, {"reach": 2, "num_hashes": 8}) > 1
    with pytest.raises(UnknownField, match=r"model 'old' has no knob alpha: it has reach and num_hashes"):
        old.knobs.check({"alpha": 0.5})


@pytest.mark.parametrize(
    ("drop", "sentence"),
    [("reach", "knobs lacks 'reach', which BlendRows requires"), ("num_hashes", "which YosoAttention requires")],
)
def test_only_a_later_knob_may_be_missing(drop: str, sentence: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "bundle")
    kept = [knob for knob in tiny.sign(folder).knobs if knob.name != drop]
    tiny.sign(folder, knobs=kept)
    with pytest.raises(BundleError, match=sentence):
        load(folder)


def test_a_knob_without_an_input_is_refused(tmp_path: Path) -> None:
    both = tiny.sign(write(tmp_path / "new")).knobs
    old = write(tmp_path / "old", later=False)
    tiny.sign(old, knobs=both)
    with pytest.raises(BundleError, match="no input for knob alpha"):
        load(old)


def test_the_table_checks_each_by_its_own_row(models: dict[str, Model]) -> None:
    table = models["new"].knobs
    assert isinstance(table, KnobTable)
    assert table.check({"alpha": 1}) == {"reach": 2, "alpha": 1.0, "num_hashes": 32}
    for name, value in (("reach", 65), ("reach", 1.5), ("alpha", 1.5)):
        with pytest.raises(KnobOutOfRange, match=f"^{name} is"):
            table.check({name: value})


def test_a_request_sets_both(client: Client, models: dict[str, Model]) -> None:
    knobs = {"reach": 3, "alpha": 0.25, "num_hashes": 8}
    answer = client.classify(TEXT, model="new", seed=5, return_logits=True, **knobs)
    assert (answer.knobs, answer.requested) == (knobs, knobs)
    np.testing.assert_allclose(answer.predictions[0].logits, logits(models["new"], seed=5, **knobs), rtol=1e-6)
    partly = client.classify(TEXT, model="new", reach=1)
    assert (partly.knobs, partly.requested) == ({"reach": 1, "alpha": 0.5, "num_hashes": 32}, {"reach": 1})
    with pytest.raises(UnknownField, match="model 'old' has no knob alpha"):
        client.classify(TEXT, model="old", alpha=0.5)


def test_the_client_checks_both_before_it_sends() -> None:
    with Client("http://127.0.0.1:9") as nobody:
        for name, value in (("reach", 65), ("alpha", -0.5), ("alpha", "0.5")):
            with pytest.raises(KnobOutOfRange, match=f"^{name} is"):
                nobody.classify(TEXT, **{name: value})


def test_the_documentation_and_the_list_of_models_have_both(client: Client) -> None:
    listed = {model.name: [knob.name for knob in model.knobs] for model in client.models()}
    assert listed == {"new": ["reach", "alpha", "num_hashes"], "old": ["reach", "num_hashes"]}
    schemas = client._http.get(f"{client.base_url}/openapi.json").json()["components"]["schemas"]
    with_reach = {
        name: schema["properties"] for name, schema in schemas.items() if "reach" in schema.get("properties", {})
    }
    assert {"ClassifyRequest", "Floors"} < set(with_reach), "and the requests of other protocols"
    assert all({"reach", "alpha", "num_hashes"} < set(fields) for fields in with_reach.values())


def test_inspect_shows_each(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folders["new"])]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("reach", "alpha", "num_hashes", "BlendRows", "YosoAttention"))
