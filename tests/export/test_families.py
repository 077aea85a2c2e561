"""Every family, exported from a saved checkpoint, against eager PyTorch on ragged batches."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import CHECKPOINTS
from exported import CASES, IDS, LENGTHS, eager_logits, rows, run

from attenuator.bundle import read_manifest
from attenuator.export.families import FAMILIES
from attenuator.ops import OPERATORS
from attenuator.runtime import create

LAYERS = {"albert": 3, "modernbert-mean": 3, "bert-one-layer": 1, "albert-groups": 8}
LAYERS |= {"mpnet-long": 1, "deberta-v2-plain": 1, "deberta-v2": 3}
LAYERS |= dict.fromkeys(("roberta-regression", "distilbert-sinusoidal", "electra-equal"), 1)
BY_KEY = {operator.key: operator for operator in OPERATORS}
Get = Callable[[str, str], Path]


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
@pytest.mark.parametrize(("name", "attention"), CASES, ids=IDS)
def test_equals_eager_pytorch_on_ragged_batches(
    name: str, attention: str, library: bool, exported: Get, checkpoint: Callable[[str], Path]
) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    session = create(folder / "model.onnx", library=library)
    for lengths in (LENGTHS, [1], [68], [1, 1, 1]):
        batch = rows(manifest, lengths)
        expected = eager_logits(checkpoint(name), manifest, batch)
        logits = run(session, manifest, batch)["logits"]
        assert np.ptp(expected) > 0.1 or expected.size == 1
        np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize(("name", "attention"), CASES, ids=IDS)
def test_graph_has_one_node_a_layer_and_constant_weights(name: str, attention: str, exported: Get) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    nodes = Counter(node.op_type for node in model.graph.node if node.domain == "attenuator")
    assert manifest.attention.operator in (attention, "relative")
    operator = BY_KEY[manifest.attention.operator].name
    assert manifest.attention.layers == LAYERS.get(name, 2)
    # In all but the last layer the first token has a node of its own beside that of the other rows.
    beside = 1 if name == "longformer" else 0
    assert manifest.attention.other_nodes.get(manifest.attention.operator, 0) == beside
    assert nodes[operator] == manifest.attention.layers + beside
    assert nodes["SequencePool"] == manifest.attention.other_nodes["pool"] >= 1
    assert nodes["KeptLengths"] == nodes["TokenSelect"]
    assert nodes.total() == nodes[operator] + nodes["SequencePool"] + 2 * nodes["TokenSelect"]
    assert {function.name for function in model.functions} == set(nodes)
    assert "Transpose" not in {node.op_type for node in model.graph.node}
    # A GEMM that ONNX Runtime prepacks has a constant weight; others would not be batch-invariant.
    constants = {tensor.name for tensor in model.graph.initializer}
    gemms = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    assert gemms
    assert all(node.input[1] in constants for node in gemms)
    if attention == "mca":
        projections = [node for node in model.graph.node if node.op_type == operator]
        assert all({node.input[3], node.input[4]} <= constants for node in projections)
        # The value projection is inside the operator, not in a GEMM that goes unused.
        assert len({node.input[3] for node in projections}) in (len(projections), 1, 4)


@pytest.mark.parametrize(("name", "attention"), CASES, ids=IDS)
def test_last_layer_computes_first_tokens_alone(name: str, attention: str, exported: Get) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    narrows = manifest.pooling == "first"
    operators = [node for node in onnx.load(folder / "model.onnx").graph.node if node.op_type.endswith("Attention")]
    if not any(item.name == "queries" for item in BY_KEY[manifest.attention.operator].attributes):
        # Attention that reads every query computes all rows; only the first go on.
        pools = [node for node in onnx.load(folder / "model.onnx").graph.node if node.op_type == "SequencePool"]
        assert operators[-1].output[0] in [node.input[0] for node in pools]
        return
    queries = [onnx.helper.get_node_attr_value(node, "queries").decode() for node in operators]
    assert queries.count("all") == manifest.attention.layers - narrows
    assert queries[-1] == ("first" if narrows else "all")


@pytest.mark.parametrize(("name", "attention"), CASES, ids=IDS)
def test_batch_gives_every_sequence_the_bits_it_gets_alone(name: str, attention: str, exported: Get) -> None:
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    knobs = {
        "mca": {"alpha": 0.5},
        "yoso": {"num_hashes": 8},
        "nystrom": {"num_landmarks": 4},
        "bigbird": {"num_random_blocks": 1},
        "window": {"window": 3},
    }.get(attention)
    batch = rows(manifest, LENGTHS, knobs) + rows(manifest, LENGTHS[::-1])
    sessions = [create(folder / "model.onnx", threads=threads) for threads in (1, 2)]
    together = [run(session, manifest, batch)["logits"] for session in sessions]
    assert np.array_equal(*together)
    for row, logits in zip(batch, together[0], strict=True):
        assert np.array_equal(run(sessions[0], manifest, [row])["logits"][0], logits)


def test_distances_beyond_the_last_bucket(exported: Get, checkpoint: Callable[[str], Path]) -> None:
    """MPNet's buckets end at 128."""
    folder = exported("mpnet-long", "softmax")
    manifest = read_manifest(folder)
    batch = rows(manifest, [200, 3, 131])
    expected = eager_logits(checkpoint("mpnet-long"), manifest, batch)
    logits = run(create(folder / "model.onnx"), manifest, batch)["logits"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", ["bert", "modernbert", "encoder-softmax"])
def test_alpha_spends_less_and_stays_close(name: str, exported: Get) -> None:
    folder = exported(name, "mca")
    manifest = read_manifest(folder)
    session = create(folder / "model.onnx")
    exact = run(session, manifest, rows(manifest, [64, 68]))
    cheap = run(session, manifest, rows(manifest, [64, 68], {"alpha": 1.0}))
    assert np.isfinite(cheap["logits"]).all()
    # So narrow a model samples only where attention is flat enough; its last layer follows alpha either way.
    assert (cheap["value_flops"] < 1).all() if name == "bert" else (cheap["value_flops"] <= 1).all()
    assert not np.array_equal(cheap["logits"], exact["logits"])


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
@pytest.mark.parametrize("name", ["bert", "bert-one-layer", "albert", "modernbert-mean"])
def test_value_flops_is_1_where_nothing_is_sampled(name: str, library: bool, exported: Get) -> None:
    """At alpha 0, where too short to sample, and in a model whose one node computes the first row alone."""
    folder = exported(name, "mca")
    manifest = read_manifest(folder)
    session = create(folder / "model.onnx", library=library)
    # The other estimator may put the mean row in the place of a token however short the text is.
    samples = manifest.attention.attributes["estimator"] == "sampled" or name == "bert-one-layer"
    short = run(session, manifest, rows(manifest, [1, 5, 12], {"alpha": 1.0} if library and samples else None))
    lengths = [1, 5, 20, 64]
    alpha = 1.0 if library and name == "bert-one-layer" else 0.0
    outputs = run(session, manifest, rows(manifest, lengths, {"alpha": alpha}))
    assert short["value_flops"].tolist() == [1.0] * 3
    assert outputs["value_flops"].tolist() == [1.0] * len(lengths)


def test_every_family_is_exported() -> None:
    assert {checkpoint.config.model_type for checkpoint in CHECKPOINTS.values()} == {row.model_type for row in FAMILIES}
