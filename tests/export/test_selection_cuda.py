"""Graphs with token selection on the test device: each operator's CUDA kernels, fed what the graph feeds it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported import rows
from harness import Array, AttributeValue
from harness_cuda import run_on_device

from attenuator.bundle import read_manifest
from attenuator.ops import OPERATORS
from attenuator.runtime import Row, create
from attenuator.runtime.batch import pack

Get = Callable[[str, str], Path]
LENGTHS = [40, 1, 9]


def attributes_of(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    values = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@pytest.mark.parametrize("attention", ["softmax", "mca"])
def test_kept_rows_of_modernbert_see_the_keys_near_their_true_positions(
    attention: str, exported: Get, tmp_path: Path
) -> None:
    folder = exported("modernbert", attention)
    manifest = read_manifest(folder)
    model = onnx.load(folder / "model.onnx")
    known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    specs = {operator.name: operator for operator in OPERATORS if not operator.host}
    nodes = [node for node in model.graph.node if node.op_type in specs]
    feeds = pack(
        [Row(row.token_ids, row.type_ids, row.knobs | {"keep": 0.4}) for row in rows(manifest, LENGTHS)], manifest
    )
    names = {name for node in nodes for name in (*node.input, *node.output) if name}
    names -= known.keys() | feeds.keys()
    model.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in sorted(names - set(manifest.outputs))
    )
    onnx.save(model, tmp_path / "model.onnx")
    values: dict[str, Array] = known | feeds
    values |= dict(zip(sorted(names), create(tmp_path / "model.onnx").run(sorted(names), feeds), strict=True))

    spread = 0
    for node in nodes:
        spec, attributes = specs[node.op_type], attributes_of(node)
        inputs = {item.name: values[name] for item, name in zip(spec.inputs, node.input, strict=False) if name}
        outputs = run_on_device(spec.name, inputs, attributes)
        for name, output in zip(filter(None, node.output), outputs, strict=True):
            size = max(1.0, float(np.abs(values[name]).max(initial=0)))
            np.testing.assert_allclose(output, values[name], rtol=0, atol=2e-5 * size)
        if attributes.get("window") and "positions" in inputs:
            spread += int((np.diff(inputs["positions"]) > 1).any())
    assert spread > 0, "no window of rows that stand apart was computed"
