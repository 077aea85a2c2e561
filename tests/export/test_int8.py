"""Bundles of precision int8: what is rounded and how, and that no neighbour in the batch changes a row's bits."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from exported import LENGTHS, eager_logits, rows, run
from onnx import TensorProto, helper, numpy_helper

from attenuator.bundle import Manifest, read_manifest
from attenuator.commands.inspect import main as inspect
from attenuator.errors import ExportError
from attenuator.export import int8
from attenuator.export.int8 import WEIGHT_HIGH, quantise_weight
from attenuator.ops import DOMAIN
from attenuator.ops.quantize_rows.reference import quantize_rows
from attenuator.ops.quantize_rows.rule import HIGH, ZERO_POINT
from attenuator.runtime import create, load
from attenuator.runtime.device import CPU
from attenuator.runtime.graph import read_graph
from attenuator.runtime.session import make_options, open_session
from attenuator.runtime.work import count_work

# One for each pattern of linear layers.
CASES = [
    ("bert", "mca"),
    ("distilbert", "mca"),
    ("albert", "mca"),
    ("modernbert-mean", "mca"),
    ("yoso", "yoso"),
    ("bert-multi-label", "softmax"),
    ("encoder-yoso", "yoso"),
    ("encoder-softmax-post", "mca"),
]
# Nodes into which ONNX Runtime fuses quantised layers; each has one scale, or one bias, for the whole batch.
FUSED = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QLinearMatMul", "QGemm"}
Get = Callable[..., Path]
every_case = pytest.mark.parametrize(
    ("name", "attention"), CASES, ids=[f"{name}-{attention}" for name, attention in CASES]
)


def one_layer(weight: np.ndarray, bias: np.ndarray | None, transposed: bool = True) -> onnx.ModelProto:
    """A linear layer as the exporter writes it, quantised."""
    inputs = ["x", "w", *(["b"] if bias is not None else [])]
    if transposed:
        nodes = [helper.make_node("Gemm", inputs, ["y"], transB=1)]
    else:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    initializers = {"w": np.ascontiguousarray(weight.T) if transposed else weight}
    initializers |= {} if bias is None else {"b": bias}
    graph = helper.make_graph(
        [*nodes, helper.make_node("Identity", ["y"], ["out"])],
        "one_layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", weight.shape[0]])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["T", weight.shape[1]])],
        [numpy_helper.from_array(values, key) for key, values in initializers.items()],
    )
    model = ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    )
    assert int8.quantise(model) == {"quantize_rows": 1, "dequantize_product": 1}
    proto: onnx.ModelProto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def session_of(proto: onnx.ModelProto, threads: int = 1) -> Any:
    return open_session(proto.SerializeToString(), make_options(threads=threads), CPU)


def emulated(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The same in NumPy: integers exactly, then float64."""
    integers, channel = quantise_weight(weight)
    quantized, scale = quantize_rows(x)
    sums = (quantized.astype(np.int64) - ZERO_POINT) @ integers.astype(np.int64)
    return sums * scale.astype(np.float64)[:, None] * channel + bias


def draw(rows_: int, inner: int, outer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(inner)
    sizes = np.array([1, 30, 1e-3, 0, 1e6, 1e-12, 1], np.float32)[np.arange(rows_) % 7, None]
    x = generator.standard_normal((rows_, inner)).astype(np.float32) * sizes
    weight = generator.standard_normal((inner, outer)).astype(np.float32)
    return x, weight, generator.standard_normal(outer).astype(np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 200)])
def test_weights_have_seven_bits_and_a_scale_a_channel(shape: tuple[int, int]) -> None:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weight[:, 0] = 0
    integers, scale = quantise_weight(weight)
    assert integers.dtype == np.int8
    assert np.abs(integers).max() <= WEIGHT_HIGH
    assert (np.abs(integers).max(axis=0)[1:] == WEIGHT_HIGH).all()
    assert scale.shape == (shape[1],)
    assert (np.abs(integers * scale - weight) <= scale / 2 * (1 + 1e-5)).all()
    assert scale[0] == 1


@pytest.mark.parametrize("size", [1e-45, 1e-44, 1.3e-43, 1e-40, 1e-37, 1e-36, 1e-30])
def test_channels_of_subnormal_weights_stay_within_seven_bits(size: float) -> None:
    weight = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    weight[:, 1] = np.linspace(-size, size, 8)
    integers, scale = quantise_weight(weight)
    assert np.abs(integers.astype(int)).max() == WEIGHT_HIGH
    assert (np.abs(integers * scale - weight) <= scale / 2 * (1 + 1e-5)).all()
    assert np.abs(integers[:, 1] * scale[1] - weight[:, 1]).max() <= max(1e-36, 0.01 * size)


@pytest.mark.parametrize("transposed", [True, False], ids=["Gemm", "MatMul"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 33, 5), (14, 64, 130), (40, 300, 17)])
def test_a_layer_computes_what_its_integers_say(shape: tuple[int, int, int], transposed: bool) -> None:
    x, weight, bias = draw(*shape)
    [output] = session_of(one_layer(weight, bias, transposed)).run(None, {"x": x})
    expected = emulated(x, weight, bias)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(expected).max() * 1e-2))
    assert np.array_equal(output[3:4], np.broadcast_to(bias, output[3:4].shape))


def test_a_layer_without_bias() -> None:
    x, weight, bias = draw(9, 20, 6)
    session = session_of(one_layer(weight, None))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], emulated(x, weight, bias * 0), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("inner", [2, 64, 3072])
def test_the_largest_products_do_not_saturate(inner: int, sign: int) -> None:
    weight = np.full((inner, 20), sign, np.float32)
    proto = one_layer(weight, np.zeros(20, np.float32))
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    assert (stored["w_int8"] == sign * WEIGHT_HIGH).all()
    for value in (1.0, -1.0):
        [output] = session_of(proto).run(None, {"x": np.full((3, inner), value, np.float32)})
        np.testing.assert_allclose(output, sign * value * inner, rtol=1e-6)
    # What the int16 sums of AVX2 without VNNI hold.
    assert np.iinfo(np.int16).max >= 2 * (ZERO_POINT + HIGH) * WEIGHT_HIGH


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_do_not_change_a_row(threads: int) -> None:
    x, weight, bias = draw(400, 64, 96)
    session = session_of(one_layer(weight, bias), threads)
    [together] = session.run(None, {"x": x})
    for index in (0, 1, 3, 4, 399):
        assert np.array_equal(session.run(None, {"x": x[index : index + 1]})[0][0], together[index])
    [halves] = session.run(None, {"x": x[::-1]})
    assert np.array_equal(halves[::-1], together)


@pytest.mark.parametrize("place", [0, 5, 31])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_that_is_not_finite_says_so_and_harms_no_other(value: float, place: int) -> None:
    x, weight, bias = draw(4, 32, 8)
    session = session_of(one_layer(weight, bias))
    before = session.run(None, {"x": x})[0]
    x[1, place] = value
    after = session.run(None, {"x": x})[0]
    assert not np.isfinite(after[1]).any()
    assert np.array_equal(np.delete(after, 1, axis=0), np.delete(before, 1, axis=0))


def test_a_graph_without_linear_layers_is_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "none",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])],
    )
    with pytest.raises(ExportError, match="needs linear layers with constant weights"):
        int8.quantise(ir.serde.deserialize_model(helper.make_model(graph)))


@every_case
def test_batch_gives_every_sequence_the_bits_it_gets_alone(name: str, attention: str, rounded: Get) -> None:
    folder = rounded(name, attention)
    manifest = read_manifest(folder)
    knobs = {"mca": {"alpha": 0.5}, "yoso": {"num_hashes": 8}}.get(attention)
    batch = rows(manifest, LENGTHS, knobs) + rows(manifest, LENGTHS[::-1])
    sessions = [create(folder / "model.onnx", threads=threads) for threads in (1, 2, 3)]
    together = [run(session, manifest, batch)["logits"] for session in sessions]
    assert all(np.array_equal(together[0], other) for other in together)
    for row, logits in zip(batch, together[0], strict=True):
        assert np.array_equal(run(sessions[0], manifest, [row])["logits"][0], logits)


@every_case
def test_optimised_graph_keeps_a_scale_for_every_row(name: str, attention: str, rounded: Get, tmp_path: Path) -> None:
    folder = rounded(name, attention)
    options = make_options()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    open_session(str(folder / "model.onnx"), options, CPU)
    before, after = (onnx.load(path).graph for path in (folder / "model.onnx", tmp_path / "optimised.onnx"))
    counts = [Counter(node.op_type for node in graph.node) for graph in (before, after)]
    assert not FUSED & set(counts[1])
    assert counts[1]["MatMulInteger"] == counts[0]["MatMulInteger"] > 0
    # The weight is a constant, which is what prepacking asks for, and has the type of the fast kernels.
    types = {tensor.name: tensor.data_type for tensor in after.initializer}
    for node in after.node:
        if node.op_type == "MatMulInteger":
            assert types[node.input[1]] == TensorProto.INT8
            assert types[node.input[2]] == TensorProto.UINT8
            assert len(node.input) == 3


@every_case
def test_every_linear_layer_but_the_head_is_int8(name: str, attention: str, exported: Get, rounded: Get) -> None:
    plain, small = (onnx.load(of(name, attention) / "model.onnx") for of in (exported, rounded))
    layers = [node for node in plain.graph.node if node.op_type in ("Gemm", "MatMul")]
    kept = [node for node in small.graph.node if node.op_type in ("Gemm", "MatMul")]
    products = [node for node in small.graph.node if node.op_type == "MatMulInteger"]
    assert len(kept) == 1
    assert len(products) == len(layers) - 1
    # Layers that read the same rows share their rounding; layers with the same weight share that.
    kinds = Counter(node.op_type for node in small.graph.node)
    assert len({node.input[0] for node in products}) == kinds["QuantizeRows"] + kinds["RequantizeProduct"]
    assert len(products) == kinds["DequantizeProduct"] + kinds["RequantizeProduct"]
    weights = {node.input[1] for node in layers} - {kept[0].input[1]}
    assert len({node.input[1] for node in products}) == len(weights)
    used = {value for node in small.graph.node for value in node.input}
    assert {tensor.name for tensor in small.graph.initializer} <= used
    own = {node.op_type for node in small.graph.node if node.domain == DOMAIN}
    assert {function.name for function in small.functions} == own > {function.name for function in plain.functions}
    if attention == "mca":
        types = {tensor.name: tensor.data_type for tensor in small.graph.initializer}
        projections = [node for node in small.graph.node if node.op_type == "McaAttention"]
        assert all(types[node.input[3]] == TensorProto.FLOAT for node in projections)


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
@every_case
def test_stays_close_to_pytorch(
    name: str, attention: str, library: bool, rounded: Get, checkpoint: Callable[[str], Path]
) -> None:
    folder = rounded(name, attention)
    manifest = read_manifest(folder)
    batch = rows(manifest, LENGTHS)
    expected = eager_logits(checkpoint(name), manifest, batch)
    logits = run(create(folder / "model.onnx", library=library), manifest, batch)["logits"]
    difference = np.abs(logits - expected).max()
    assert 0 < difference < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
def test_a_projection_of_more_than_rows_stays(library: bool, rounded: Get, checkpoint: Callable[[str], Path]) -> None:
    """DeBERTa's embeddings are projected as `[1, T, in]`."""
    name = "deberta-v2-convolution"
    folder = rounded(name, "softmax")
    kinds = Counter(node.op_type for node in onnx.load(folder / "model.onnx").graph.node)
    assert (kinds["MatMul"], kinds["Gemm"], kinds["MatMulInteger"]) == (1, 1, 14)
    manifest = read_manifest(folder)
    batch = rows(manifest, LENGTHS)
    expected = eager_logits(checkpoint(name), manifest, batch)
    logits = run(create(folder / "model.onnx", library=library), manifest, batch)["logits"]
    assert 0 < np.abs(logits - expected).max() < 0.1 * np.abs(expected).max()


def test_bundle_says_what_rounding_cost_and_probes_its_own_logits(exported: Get) -> None:
    folder, plain = exported("encoder-yoso", "yoso", "int8"), exported("encoder-yoso", "yoso")
    manifest = read_manifest(folder)
    assert manifest.precision == "int8"
    parity = manifest.provenance.parity
    assert 0.9 <= parity["agreement"] <= 1
    assert parity["packing"] == 0
    assert parity["times_as_fast_as_fp32"] > 0
    assert parity["fp32_bytes"] == (plain / "model.onnx").stat().st_size > (folder / "model.onnx").stat().st_size
    model = load(folder)
    with np.load(folder / "probe.npz") as probe:
        starts, logits, ids = probe["cu_seqlens"], probe["logits"], probe["input_ids"]
    for index, (begin, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        encoded = model.from_ids(ids[begin:end].tolist())
        [row] = rows(manifest, [1])
        row = type(row)(encoded.token_ids, encoded.type_ids, model.knobs.exact(), seed=0)
        assert np.array_equal(model.run([row])[0].logits, logits[index])
    assert model.predict_cost(100, model.knobs.exact()) == pytest.approx(
        load(plain, check=False).predict_cost(100, model.knobs.exact())
    )


def test_manifest_of_an_fp32_bundle_does_not_change(exported: Get) -> None:
    parity = read_manifest(exported("encoder-yoso", "yoso")).provenance.parity
    assert set(parity) == {"largest_logit", "library", "fallback", "packing", "agreement"}
    assert parity["agreement"] == 1


@pytest.mark.parametrize(("name", "attention"), [("encoder-yoso", "yoso"), ("bert", "mca")])
def test_an_fp32_bundle_is_rounded_to_the_graph_that_export_makes(
    name: str, attention: str, exported: Get, rounded: Get
) -> None:
    small, expected = (
        onnx.load(path / "model.onnx") for path in (rounded(name, attention), exported(name, attention, "int8"))
    )
    assert [node.SerializeToString() for node in small.graph.node] == [
        node.SerializeToString() for node in expected.graph.node
    ]
    weights = [{one.name: numpy_helper.to_array(one) for one in model.graph.initializer} for model in (small, expected)]
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_model_that_rounding_breaks_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attenuator.export import export, verify

    monkeypatch.setitem(verify.TOLERANCE, "int8", 1e-4)
    with pytest.raises(
        ExportError, match=r"int8 \(library\) moves a logit by .*, must be at most .*: export it as fp32"
    ):
        export(str(checkpoint("encoder-yoso")), attention="yoso", output=tmp_path / "b", precision="int8")
    assert not (tmp_path / "b").exists()


def test_inspect_shows_the_precision_and_the_same_work(exported: Get, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for precision in ("fp32", "int8"):
        assert inspect([str(exported("encoder-yoso", "yoso", precision))]) == 0
        reports.append(capsys.readouterr().out)
    assert "linear layers: activations 8 bits a token" in reports[1]
    assert "linear layers: activations 8 bits a token" not in reports[0]
    works = [count_work(read_graph(exported("bert", "mca", p) / "model.onnx")) for p in ("fp32", "int8")]
    assert works[0].attention == works[1].attention
    assert works[0].layer_macs == works[1].layer_macs > 0
    assert works[0].token_macs == works[1].token_macs
    # A node for the rows of each layer and one for its product, which has bias, activation, residual and norm.
    assert works[0].launches < works[1].launches < 2 * works[0].launches


def test_manifests_of_unknown_precision_are_refused(exported: Get) -> None:
    raw = read_manifest(exported("encoder-yoso", "yoso")).model_dump()
    with pytest.raises(ValueError, match="precision"):
        Manifest.model_validate(raw | {"precision": "int4"})


def test_softmax_attention_is_in_int8_and_no_other(exported: Get) -> None:
    for name, attention, expected in (("bert-multi-label", "SoftmaxAttention", 1), ("bert", "McaAttention", None)):
        folder = exported(name, {"SoftmaxAttention": "softmax", "McaAttention": "mca"}[attention], "int8")
        nodes = [node for node in read_graph(folder / "model.onnx").nodes if node.domain == "attenuator"]
        assert {node.attributes.get("int8_products") for node in nodes if node.op_type == attention} == {expected}
        assert "int8_products" not in read_manifest(folder).attention.attributes
