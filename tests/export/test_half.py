"""Bundles of precision fp16 and bf16: what their graphs hold, and what can be proven about them on a CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers
from checkpoints import SMALL, VOCAB, randomise
from exported import LENGTHS, eager_logits, rows, run
from onnx import TensorProto, helper
from refusals import refuse, save

from attenuator.bundle import read_manifest
from attenuator.errors import BundleError
from attenuator.export import export, half
from attenuator.export.cuda_kernels import KERNEL_OPSET
from attenuator.export.fallback import function
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.ops.softmax.reference import softmax_attention
from attenuator.runtime import create, load

CASES = [("encoder-yoso", "yoso"), ("bert", "mca"), ("modernbert-mean", "mca"), ("deberta-v2", "softmax")]
TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
# Relative error of one rounding.
UNIT = {"fp16": 2.0**-11, "bf16": 2.0**-8}
# An export for each of these. ModernBERT computes in bf16 where rows are merged, below.
HALF = [
    (*case, precision) for precision in TYPES for case in CASES if case[0] != "modernbert-mean" or precision == "fp16"
]
Get = Callable[..., Path]
every_half = pytest.mark.parametrize(("name", "attention", "precision"), HALF)
every_case = pytest.mark.parametrize(("name", "attention"), CASES)
every_precision = pytest.mark.parametrize("precision", TYPES)


@every_half
def test_data_is_half_as_wide_and_nothing_else_is(name: str, attention: str, precision: str, exported: Get) -> None:
    folder = exported(name, attention, precision)
    manifest = read_manifest(folder)
    assert manifest.precision == precision
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.input)}
    nodes = [node for node in model.graph.node if node.domain == "attenuator"]
    assert nodes
    for node in nodes:
        operator = next(row for row in OPERATOR_BY_KEY.values() if row.name == node.op_type)
        for item, value in zip(operator.inputs, node.input, strict=False):
            if not value:  # an optional input that is left out
                continue
            expected = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}[item.dtype]
            assert types[value] == (TYPES[precision] if item.data else expected), (node.op_type, item.name)
    assert all(output.type.tensor_type.elem_type == TensorProto.FLOAT for output in model.graph.output)
    assert [output.name for output in model.graph.output] == manifest.outputs
    weights = [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2]
    assert {tensor.data_type for tensor in weights} == {TYPES[precision]}
    for linear in (node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")):
        assert types[linear.input[1]] == TYPES[precision]


@every_half
def test_its_fp32_form_equals_pytorch_but_for_the_rounding_of_weights(
    name: str, attention: str, precision: str, exported: Get, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = exported(name, attention, precision)
    manifest = read_manifest(folder)
    stored = ir.load(folder / "model.onnx")
    stored.functions.clear()
    ir.save(half.widened(stored), tmp_path / "wide.onnx")
    batch = rows(manifest, LENGTHS)
    expected = eager_logits(checkpoint(name), manifest, batch)
    logits = run(create(tmp_path / "wide.onnx"), manifest, batch)["logits"]
    # Ten roundings deep, errors of a unit add up to no more than this.
    assert 0 < np.abs(logits - expected).max() < 10 * UNIT[precision] * np.abs(expected).max()
    parity = manifest.provenance.parity
    # Export multiplies tables for distances out in fp32: they are rounded themselves, not the weights behind them.
    limit = UNIT[precision] if manifest.attention.operator == "relative" else 1e-4
    assert parity["library"] < limit * parity["largest_logit"]
    assert parity["packing"] == 0
    assert 0 < parity["rounded_weights"] < 10 * UNIT[precision] * parity["largest_logit"]
    assert ("fp16" in parity) == (precision == "fp16")


@every_case
def test_fp16_runs_on_the_cpu_without_the_operators(
    name: str, attention: str, exported: Get, checkpoint: Callable[[str], Path]
) -> None:
    folder = exported(name, attention, "fp16")
    manifest = read_manifest(folder)
    batch = rows(manifest, LENGTHS)
    expected = eager_logits(checkpoint(name), manifest, batch)
    logits = run(create(folder / "model.onnx", library=False), manifest, batch)["logits"]
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() < 20 * UNIT["fp16"] * np.abs(expected).max()


@every_precision
def test_the_cpu_refuses_it_in_one_sentence(precision: str, exported: Get) -> None:
    folder = exported("encoder-yoso", "yoso", precision)
    for check in (True, False):
        with pytest.raises(BundleError, match=f"has precision {precision}, which runs on a CUDA device only") as caught:
            load(folder, check=check)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_functions_take_the_type_and_compute_in_fp32(dtype: int) -> None:
    inputs = [item for item in OPERATOR_BY_KEY["softmax"].inputs if not item.optional]
    names = [item.name for item in inputs]
    attributes: dict[str, Any] = {item.name: item.default for item in OPERATOR_BY_KEY["softmax"].attributes}
    node = helper.make_node(
        "SoftmaxAttention", names, ["output"], domain="attenuator", **attributes | {"num_heads": 2, "queries": "all"}
    )
    types = [dtype, dtype, dtype, TensorProto.INT32]
    graph = helper.make_graph(
        [node],
        "one_node",
        [
            helper.make_tensor_value_info(name, kind, [None] * len(item.axes))
            for name, kind, item in zip(names, types, inputs, strict=True)
        ],
        [helper.make_tensor_value_info("output", dtype, [None, None])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("attenuator", 1)]
    model = helper.make_model(
        graph, functions=[function("softmax", names, ["output"], 20, dtype)], opset_imports=opsets, ir_version=10
    )
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    data = {name: generator.standard_normal((9, 16)) for name in names[:3]}
    narrow = {name: values.astype(helper.tensor_dtype_to_np_dtype(dtype)) for name, values in data.items()}
    starts = {"cu_seqlens": np.array([0, 4, 9], np.int32)}
    [output] = session.run(None, narrow | starts)
    assert output.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    wide = {name: values.astype(np.float32) for name, values in narrow.items()}
    del attributes["importance"], attributes["int8_products"]  # functions of their own in the reference
    expected = softmax_attention(**wide, **starts, **attributes | {"num_heads": 2})
    np.testing.assert_allclose(output, expected, atol=2e-3 if dtype == TensorProto.FLOAT16 else 2e-6)


@every_precision
def test_every_node_has_a_kernel_on_cuda(precision: str, exported: Get) -> None:
    for name, attention, _ in (case for case in HALF if case[2] == precision):
        model = ir.load(exported(name, attention, precision) / "model.onnx")
        assert model.opset_imports[""] == KERNEL_OPSET
        assert half.without_kernel(model.graph, precision) == []


@pytest.mark.parametrize(("name", "precision"), [("bert", "fp16"), ("modernbert", "bf16")])
def test_rows_left_out_are_merged_in_half_types_too(name: str, precision: str, exported: Get) -> None:
    folder = exported(name, "softmax", precision, "mean")
    graph = ir.load(folder / "model.onnx").graph
    assert half.without_kernel(graph, precision) == []
    assert all(node.inputs[4] is not None for node in graph if node.op_type == "TokenSelect")
    parity = read_manifest(folder).provenance.parity
    assert parity["library"] < 1e-4 * parity["largest_logit"]


@pytest.mark.parametrize(("activation", "op_type"), [("mish", "Mish"), ("relu6", "Clip")])
def test_activations_without_a_bf16_kernel_compute_in_fp32(activation: str, op_type: str, tmp_path: Path) -> None:
    config = transformers.BertConfig(**SMALL | {"num_hidden_layers": 1, "hidden_act": activation})
    model = transformers.BertForSequenceClassification(config)
    randomise(model)
    folder = save(model, tmp_path / "checkpoint")
    manifest = export(str(folder), attention="softmax", output=tmp_path / "bundle", precision="bf16")
    written = ir.load(tmp_path / "bundle" / "model.onnx")
    assert op_type in {node.op_type for node in written.graph}
    assert half.without_kernel(written.graph, "bf16") == []
    assert manifest.provenance.parity["library"] < 1e-4 * manifest.provenance.parity["largest_logit"]


def test_a_node_without_a_kernel_gets_casts() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (bfloat16[N] x) => (bfloat16[N] y) '
        "{ a = Abs(x) r = Reciprocal(a) y = Add(r, x) }"
    )
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    assert [node.op_type for node in half.without_kernel(model.graph, "bf16")] == ["Reciprocal"]
    assert half.widen_unsupported(model.graph, "bf16") == 1
    assert half.without_kernel(model.graph, "bf16") == []
    assert [node.op_type for node in model.graph] == ["Abs", "Cast", "Reciprocal", "Cast", "Add"]
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
    assert half.without_kernel(model.graph, "fp16") == []


def test_weights_beyond_fp16_are_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SMALL)
    model = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[VOCAB - 1, 0] = 1e6
    sentence = refuse(save(model, tmp_path / "wide"), tmp_path, precision="fp16")
    assert "word_embeddings.weight' is beyond the range of precision 'fp16'; use bf16 or fp32" in sentence
