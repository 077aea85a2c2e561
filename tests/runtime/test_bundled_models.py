"""The bundles in `examples/bundles`: they pass the check at load, and company changes no bit of an answer."""

import random
from pathlib import Path

import numpy as np
import onnx
import pytest

import attenuator
from attenuator.bundle import MANIFEST, MODEL, read_manifest
from attenuator.runtime import KnobTable, Row, create, load
from attenuator.runtime.batch import pack
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

BUNDLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "bundles").glob(f"*/{MANIFEST}"))
SELECTING = [path.parent for path in BUNDLES if "keep" in {knob.name for knob in read_manifest(path.parent).knobs}]
TEXT = "the film was a quiet and moving one but the agreement may be terminated by either party at any time"
WORDS = TEXT.split()


@pytest.mark.parametrize("folder", [path.parent for path in BUNDLES], ids=lambda folder: folder.name)
def test_fifty_rows_with_fifty_knobs_answer_as_alone(folder: Path) -> None:
    model = load(folder)
    draw = random.Random(3)
    rows = []
    for index in range(50):
        encoded = model.encode(" ".join(draw.choices(WORDS, k=draw.choice([1, 4, 30, 200, 450]))), truncate=True)
        knobs = {
            name: min(index, int(row.high)) if row.dtype == "int32" else row.low + (row.high - row.low) * index / 49
            for name, row in model.knobs.rows.items()
        }
        rows.append(Row(encoded.token_ids, encoded.type_ids, model.knobs.check(knobs), draw.randrange(2**53)))
    together = model.run(rows)
    for row, batched in zip(rows, together, strict=True):
        [alone] = model.run([row])
        assert np.array_equal(alone.logits, batched.logits)
        assert alone.value_flops == batched.value_flops
    assert len({batched.logits.tobytes() for batched in together}) > 25


@pytest.mark.parametrize("tokens", [40, 300])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_predicted_share_of_the_value_projection_is_near_the_one_computed(alpha: float, tokens: int) -> None:
    """Good to a factor of two is what admission and lanes need."""
    folder = next(path.parent for path in BUNDLES if path.parent.name == "reviews-mca")
    model = load(folder, check=False)
    ids = model.encode(" ".join(WORDS * 20), truncate=True).token_ids[:tokens]
    [result] = model.run([Row(ids, ids * 0, model.knobs.exact() | {"alpha": alpha})])
    assert result.value_flops is not None
    work = count_work(read_graph(folder / MODEL))
    exact, predicted = (model.predict_cost(tokens, {"alpha": value}) for value in (0.0, alpha))
    share = 1 - (exact - predicted) / work.projection_macs(tokens)
    assert result.value_flops / 2 < share < result.value_flops * 2


@pytest.mark.parametrize("folder", SELECTING, ids=lambda folder: folder.name)
def test_predicted_rows_are_those_that_go_on(folder: Path, tmp_path: Path) -> None:
    """Hence predicted multiply-adds of linear layers and attention are those of the run, layer by layer."""
    graph = onnx.load(folder / MODEL)
    boundaries = [node.output[0] for node in graph.graph.node if node.op_type == "KeptLengths"]
    for output in boundaries:
        graph.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.INT32, ["B + 1"]))
    onnx.save(graph, tmp_path / MODEL)
    session, work, manifest = create(tmp_path / MODEL), count_work(read_graph(folder / MODEL)), read_manifest(folder)
    assert len(boundaries) == len(work.stages) - 1 > 0
    lengths = (1, 2, 30, 300, 511)
    knobs = KnobTable(folder.name, manifest.knobs)
    for keep in (0.05, 0.25, 0.3, 0.5, 1.0):
        values = knobs.check({"keep": keep})
        rows = [Row(np.arange(tokens), np.zeros(tokens, np.int64), values) for tokens in lengths]
        kept = [np.diff(each) for each in session.run(boundaries, pack(rows, manifest))]
        assert [work.rows(tokens, values)[1:] for tokens in lengths] == np.transpose(kept).tolist()


def test_the_tagger_marks_personal_data_and_nothing_else() -> None:
    [folder] = [path.parent for path in BUNDLES if path.parent.name == "pii"]
    texts = [
        "Hi, I'm Maria Santos, call me at +1 415 555 0132 or write to maria.santos@example.com before 3 May.",
        "The update to version 2.1 takes 15 minutes and costs 30 euros.",
    ]
    found, nothing = (prediction.entities for prediction in attenuator.load(folder).classify(texts).predictions)
    assert found is not None
    assert [(each.label, texts[0][each.start : each.end]) for each in found] == [
        ("PERSON", "Maria Santos"),
        ("PHONE", "+1 415 555 0132"),
        ("EMAIL", "maria.santos@example.com"),
        ("DATE", "3 May"),
    ]
    assert nothing == ()
