"""Token selection in graphs: against plain PyTorch per family, mixed in a batch, and bit for bit at keep = 1."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import CHECKPOINTS, load
from exported import CASES, LENGTHS, rows, run
from selecting import logits

from attenuator.bundle import Manifest, read_manifest
from attenuator.export import export
from attenuator.export.selection import DEFAULT, SCHEDULES, can_select, exponents
from attenuator.ops import OPERATORS, attention_with
from attenuator.runtime import Row, create

Get = Callable[[str, str], Path]
# Models of one layer, which computes the first token alone.
ONE_LAYER = {"bert-one-layer", "mpnet-long", "deberta-v2-plain"}
ONE_LAYER |= {"roberta-regression", "distilbert-sinusoidal", "electra-equal"}
# Whose attention has a convolution: a selection would give rows other neighbours.
CONVOLVING = {"yoso", "encoder-yoso"}
# Of every family, and of each way to pool and to norm; the exact attention of MCA is softmax attention.
# Attention that says what each token matters for; DeBERTa's is asked for as softmax.
WEIGHING = attention_with("keep")
# Backwards: beside tests/export/test_families.py each process would wait for the export that the other makes.
SELECTING = [
    (name, attention)
    for name, attention in reversed(CASES)
    if attention in WEIGHING and name not in ONE_LAYER | CONVOLVING
]
# Of the knobs that an attention has besides.
SAMPLED: dict[str, dict[str, float]] = {
    operator.key: {knob.name: 0.5 if knob.dtype == "float" else 3 for knob in operator.knobs}
    for operator in OPERATORS
    if can_select(operator)
}
IDS = [f"{name}-{attention}" for name, attention in SELECTING]
# One for each operator, and for each way in which rows leave a layer and come back: dropped, dropped with what a
# convolution makes of them, frozen. Every case costs an export of its own.
EACH_WAY = [
    ("bert", "mca"),
    ("modernbert-mean", "mca"),
    ("deberta-v2-convolution", "softmax"),
    ("encoder-softmax-post", "mca"),
    ("yoso-dense", "yoso"),
]
KEEPS = (1.0, 0.5, 0.05, 0.8, 0.3, 0.25, 0.6)


def mixed(manifest: Manifest, **knobs: float) -> list[Row]:
    """Sequences of every length at several shares, one after the other."""
    batch = []
    for index, row in enumerate(rows(manifest, LENGTHS * 2, knobs)):
        values = dict(row.knobs) | {"keep": KEEPS[index % len(KEEPS) - index // len(KEEPS)]}
        batch.append(Row(row.token_ids, row.type_ids, values, seed=row.seed))
    return batch


def selection(folder: Path) -> tuple[tuple[float, ...], str]:
    """One exponent a layer and the importance, as the graph's own nodes say."""
    powers: list[float] = []
    importance = set()
    nodes = list(onnx.load(folder / "model.onnx").graph.node)
    last = [node for node in nodes if node.op_type.endswith("Attention")][-1]
    for node in nodes:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type.endswith("Attention"):
            # A node for the first rows alone is the last layer, or stands beside that of its layer.
            powers += [0.0] if attributes["queries"] == b"all" or node is last else []
            importance |= {attributes["importance"].decode()} - {"none"}
        if node.op_type == "KeptLengths":
            powers[-1] = attributes["exponent"]
    [kind] = importance
    return tuple(powers), kind


@pytest.mark.parametrize(("name", "attention"), SELECTING, ids=IDS)
def test_graph_computes_what_pytorch_computes_with_the_same_selection(
    name: str, attention: str, exported: Get, checkpoint: Callable[[str], Path]
) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    session = create(folder / "model.onnx")
    powers, importance = selection(folder)
    assert powers == pytest.approx(exponents(DEFAULT, manifest.attention.layers, manifest.pooling))
    assert importance == ("first" if attention == "yoso" else "maximum")
    model = load(checkpoint(name))
    typed = "token_type_ids" in manifest.inputs
    batch = mixed(manifest)
    expected = np.stack(
        [
            logits(model, row.token_ids, row.type_ids if typed else None, row.knobs["keep"], powers, importance)
            for row in batch
        ]
    )
    actual = run(session, manifest, batch)["logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))
    exact = run(session, manifest, [Row(row.token_ids, row.type_ids, row.knobs | {"keep": 1.0}) for row in batch])
    assert not np.array_equal(actual, exact["logits"]), "a smaller share changes something"


@pytest.mark.parametrize(("name", "attention"), SELECTING, ids=IDS)
def test_batch_of_mixed_knobs_gives_every_sequence_the_bits_it_gets_alone(
    name: str, attention: str, exported: Get
) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    batch = mixed(manifest) + (mixed(manifest, **SAMPLED[attention]) if SAMPLED[attention] else [])
    sessions = [create(folder / "model.onnx", threads=threads) for threads in (1, 2)]
    together = [run(session, manifest, batch)["logits"] for session in sessions]
    assert np.array_equal(*together)
    for row, expected in zip(batch, together[0], strict=True):
        assert np.array_equal(run(sessions[0], manifest, [row])["logits"][0], expected)


@pytest.mark.parametrize(("name", "attention"), EACH_WAY)
def test_keep_1_gives_the_bits_of_a_graph_without_selection(
    name: str, attention: str, exported: Get, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = exported(name, attention)
    export(str(checkpoint(name)), attention=attention, output=tmp_path / "without", schedule="none")
    with_it, without = read_manifest(folder), read_manifest(tmp_path / "without")
    assert {knob.name for knob in with_it.knobs} - {knob.name for knob in without.knobs} == {"keep"}
    assert set(without.attention.other_nodes) == {"pool"}
    batch = rows(with_it, LENGTHS) + rows(with_it, LENGTHS[::-1], SAMPLED[attention])
    ours = run(create(folder / "model.onnx"), with_it, batch)
    theirs = run(create(tmp_path / "without" / "model.onnx"), without, batch)
    for name_of_output in without.outputs:
        assert np.array_equal(ours[name_of_output], theirs[name_of_output])


@pytest.mark.parametrize(("name", "attention"), SELECTING, ids=IDS)
def test_manifest_counts_the_selection_and_offers_its_knob(name: str, attention: str, exported: Get) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    nodes = Counter(node.op_type for node in onnx.load(folder / "model.onnx").graph.node)
    count = manifest.attention.layers - (manifest.pooling == "first")
    assert nodes["KeptLengths"] == nodes["TokenSelect"] == nodes.get("ScatterND", count) == count
    assert manifest.attention.other_nodes["kept_lengths"] == manifest.attention.other_nodes["select"] == count
    [knob] = [knob for knob in manifest.knobs if knob.name == "keep"]
    assert (knob.low, knob.high, knob.exact, knob.default) == (0.05, 1, 1, 1)
    assert "keep" in manifest.inputs


def test_one_layer_that_computes_the_first_token_alone_has_nothing_to_select(exported: Get) -> None:
    manifest = read_manifest(exported("bert-one-layer", "mca"))
    assert [knob.name for knob in manifest.knobs] == ["alpha"]
    assert "keep" not in manifest.inputs


@pytest.mark.parametrize("name", sorted(CONVOLVING))
def test_attention_with_a_convolution_selects_nothing(name: str, exported: Get) -> None:
    manifest = read_manifest(exported(name, "yoso"))
    assert [knob.name for knob in manifest.knobs] == ["num_hashes"]
    assert "keep" not in manifest.inputs


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_keep_is_the_geometric_mean_of_what_goes_on(schedule: str) -> None:
    for layers in range(1, 30):
        for pooling in ("first", "mean"):
            powers = exponents(schedule, layers, pooling)
            assert len(powers) == layers
            assert all(0 <= power <= 1 for power in powers), "what the operator takes"
            places = powers if pooling == "mean" else powers[:-1]
            assert powers[len(places) :] in ((), (0.0,))
            # From layer i on keep^(e_1 + ... + e_i) of the text's tokens go on.
            spent = np.mean(np.cumsum(places)) if places else 1
            assert spent == pytest.approx(1) if schedule not in ("second", "middle") else spent <= 1, "these are dearer"


# Schedules are exponents, which the test above holds; graphs differ in which layers have one.
@pytest.mark.parametrize(
    ("name", "schedule"),
    [("albert", "first"), ("encoder-softmax-post", "first"), ("encoder-softmax-post", "second")],
)
def test_schedules_that_leave_layers_out_compute_what_pytorch_computes(
    name: str, schedule: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    manifest = export(str(checkpoint(name)), attention="softmax", output=folder, schedule=schedule)
    powers, importance = selection(folder)
    assert powers == pytest.approx(exponents(schedule, manifest.attention.layers, manifest.pooling))
    model = load(checkpoint(name))
    typed = "token_type_ids" in manifest.inputs
    batch = mixed(manifest)
    expected = np.stack(
        [
            logits(model, row.token_ids, row.type_ids if typed else None, row.knobs["keep"], powers, importance)
            for row in batch
        ]
    )
    actual = run(create(folder / "model.onnx"), manifest, batch)["logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


def test_every_family_with_softmax_attention_is_tried() -> None:
    tried = {CHECKPOINTS[name].config.model_type for name, _ in SELECTING}
    families = {checkpoint.config.model_type for checkpoint in CHECKPOINTS.values()}
    assert tried == families - {"nystromformer"}, "whose attention has no weights of single tokens"
