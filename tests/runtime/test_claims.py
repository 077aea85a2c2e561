"""What a bundle says beside its graph, against the graph; graphs that cannot be counted; outputs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from onnx import helper, numpy_helper

from attenuator import bundle
from attenuator.errors import BundleError, EngineError
from attenuator.runtime import Row, load
from attenuator.runtime.check import check_bundle
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work


@pytest.fixture
def copy(bundles: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles["yoso"], tmp_path / "bundle"))


def refused(folder: Path, *phrases: str) -> None:
    with pytest.raises(BundleError) as caught:
        check_bundle(folder)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 600
    for phrase in phrases:
        assert phrase in sentence, sentence


def claim(folder: Path, **attributes: int | float | str) -> None:
    """Changes what the manifest says of the attention nodes."""
    attention = json.loads((folder / bundle.MANIFEST).read_text())["attention"]
    tiny.sign(folder, attention=bundle.Attention(**attention | {"attributes": attributes}))


def test_estimator_of_another_bundle(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundles["mca"], tmp_path / "mca"))
    claim(folder, estimator="sampled", scale=0.0)
    check_bundle(folder)
    claim(folder, estimator="deterministic")
    refused(folder, "McaAttention node with estimator 'sampled', but bundle.json says 'deterministic'")
    claim(folder, scale=0.125)
    refused(folder, "scale 0.0, but bundle.json says 0.125")


def test_float_attribute_is_read_from_the_graph(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundles["softmax"], tmp_path / "softmax"))
    model = onnx.load(folder / bundle.MODEL)
    scale = 1 / 32**0.5  # what 0 stands for
    for node in model.graph.node:
        if node.op_type == "SoftmaxAttention":
            node.attribute.append(helper.make_attribute("scale", scale))
    onnx.save(model, folder / bundle.MODEL)
    claim(folder, scale=scale)
    check_bundle(folder)
    claim(folder, scale=0.2)
    refused(folder, "node with scale 0.1767", "bundle.json says 0.2")


def no_heads(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "num_heads":
                attribute.i = 0


def few_inputs(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.domain == "attenuator":
            del node.input[:]


def flat_weights(model: onnx.ModelProto) -> None:
    for weight in model.graph.initializer:
        del weight.dims[:]


Edit = Callable[[onnx.ModelProto], None]


@pytest.mark.parametrize("edit", [no_heads, few_inputs, flat_weights])
def test_graph_that_cannot_be_counted(copy: Path, edit: Edit) -> None:
    """Work is counted before ONNX Runtime refuses such a graph."""
    model = onnx.load(copy / bundle.MODEL)
    edit(model)
    (copy / bundle.MODEL).write_bytes(model.SerializeToString())
    count_work(read_graph(copy / bundle.MODEL))
    tiny.sign(copy)
    refused(copy, bundle.MODEL)


def logits_of_three_rows(model: onnx.ModelProto) -> None:
    """As many as the probe has."""
    for name, value in (("first", 0), ("last", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), name))
    model.graph.node[-1].output[0] = "plain_logits"
    model.graph.node.append(helper.make_node("Slice", ["plain_logits", "first", "last"], ["logits"]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_value_flops_that_are_no_share(bundles: dict[str, Path], tmp_path: Path, value: float) -> None:
    folder = Path(shutil.copytree(bundles["mca"], tmp_path / "bundle"))
    model = onnx.load(folder / bundle.MODEL)
    model.graph.node[-1].output[0] = "plain_flops"
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), "factor"))
    model.graph.node.append(helper.make_node("Mul", ["plain_flops", "factor"], ["value_flops"]))
    onnx.save(model, folder / bundle.MODEL)
    tiny.sign(folder)
    refused(folder, "gives value_flops", "must be finite and at least 0: share of")


@pytest.mark.parametrize("count", [3, 5])
def test_logits_of_other_rows_than_the_batch(copy: Path, count: int) -> None:
    """Rows would be answered with each other's logits, or not at all."""
    model = onnx.load(copy / bundle.MODEL)
    logits_of_three_rows(model)
    onnx.save(model, copy / bundle.MODEL)
    tiny.sign(copy)
    loaded = load(copy)
    rows = [Row(np.array([5]), np.array([0]), {"num_hashes": 8}) for _ in range(count)]
    if count <= 3:
        assert len(loaded.run(rows)) == count
        return
    with pytest.raises(EngineError, match=r"gave logits of shape \[3, 3\] for a batch, must be \[5, 3\]"):
        loaded.run(rows)
