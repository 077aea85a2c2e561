"""What follows a linear layer is computed with it in an int8 graph, where nothing else reads the values between."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from attenuator.export import fallback, int8
from attenuator.ops.dequantize_product.reference import ACTIVATIONS, normalized
from attenuator.ops.quantize_rows.reference import quantize_rows
from attenuator.ops.quantize_rows.rule import ZERO_POINT
from attenuator.runtime.device import CPU
from attenuator.runtime.session import make_options, open_session

WIDTH, WIDE = 20, 33
GELU_NEW = [
    ("Mul", ["wide", "half"], "halved"),
    ("Pow", ["wide", "three"], "cube"),
    ("Mul", ["cube", "factor"], "scaled"),
    ("Add", ["wide", "scaled"], "sum"),
    ("Mul", ["sum", "root"], "argument"),
    ("Tanh", ["argument"], "tanh"),
    ("Add", ["tanh", "one"], "above"),
    ("Mul", ["halved", "above"], "active"),
]
NUMBERS = {"half": 0.5, "three": 3.0, "factor": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1.0}
FORMS: dict[str, list[tuple[Any, ...]]] = {
    "none": [("Identity", ["wide"], "active")],
    "gelu": [("Gelu", ["wide"], "active")],
    "gelu_tanh": [("Gelu", ["wide"], "active", {"approximate": "tanh"})],
    "gelu_new": GELU_NEW,
    "relu": [("Relu", ["wide"], "active")],
}


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (WIDTH, WIDE), "b1": (WIDE,), "w2": (WIDE, WIDTH), "b2": (WIDTH,)}
    shapes |= {"scale": (WIDTH,), "shift": (WIDTH,), "square": (WIDTH, WIDTH)}
    return {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


def rounded(nodes: Sequence[tuple[Any, ...]], read: str = "") -> tuple[onnx.ModelProto, Counter[str]]:
    """An int8 graph of nodes `(op type, inputs, output, attributes)`, with functions, and its nodes by type.

    `read` is a value that something else reads.
    """
    nodes = [*nodes, *([("Identity", [read], "other")] if read else [])]
    outputs = ["out", *(["other"] if read else [])]
    constants = weights() | {name: np.array(value, np.float32) for name, value in NUMBERS.items()}
    used = {name for _, inputs, *_ in nodes for name in inputs}
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **dict(*more)) for kind, inputs, output, *more in nodes],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(plain))
    added = int8.quantise(model)
    fallback.attach(model)
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto, full_check=True)
    kinds = Counter(node.op_type for node in proto.graph.node)
    assert sum(added.values()) == sum(kinds[name] for name in OURS)
    return proto, kinds


OURS = ("QuantizeRows", "DequantizeProduct", "RequantizeProduct")
FIRST = ("Gemm", ["x", "w1", "b1"], "wide")
SECOND = ("Gemm", ["active", "w2", "b2"], "narrow")
RESIDUAL = ("Add", ["narrow", "x"], "summed")
NORM = ("LayerNormalization", ["summed", "scale", "shift"], "normal", {"axis": -1, "epsilon": 1e-3})
END = ("Identity", ["summed"], "out")
END_NORMAL = ("Identity", ["normal"], "out")
END_TIED = ("Identity", ["tied"], "out")
RANKS = {"cubes": ["B", 3, 4], "rows": ["T", 4]}


def run(proto: onnx.ModelProto, x: np.ndarray, library: bool = True) -> list[np.ndarray]:
    options = make_options(library=library, threads=1)
    return list(open_session(proto.SerializeToString(), options, CPU).run(None, {"x": x}))


def integers(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A rounded layer in float64."""
    quantized, scale = quantize_rows(x.astype(np.float32))
    values, channel = int8.quantise_weight(weight)
    return (quantized.astype(int) - ZERO_POINT) @ values.astype(int) * scale.astype(float)[:, None] * channel + bias


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
@pytest.mark.parametrize("form", FORMS)
def test_a_feed_forward_part_is_five_nodes(form: str, library: bool) -> None:
    proto, kinds = rounded([FIRST, *FORMS[form], SECOND, RESIDUAL, END])
    if form == "none":  # an Identity stands between
        assert kinds["RequantizeProduct"] == 0
    else:
        assert kinds == {"MatMulInteger": 2, "Identity": 1} | dict.fromkeys(OURS, 1)
    x = np.random.default_rng(1).standard_normal((9, WIDTH)).astype(np.float32)
    [out] = run(proto, x, library)
    w = weights()
    activation = ACTIVATIONS["gelu_tanh" if form == "gelu_new" else form]
    expected = integers(activation(integers(x, w["w1"], w["b1"])), w["w2"], w["b2"]) + x
    # A value next to a half may be rounded the other way.
    assert np.abs(out - expected).max() < 0.02
    np.testing.assert_allclose(np.median(np.abs(out - expected)), 0, atol=1e-5)


@pytest.mark.parametrize("library", [True, False], ids=["library", "fallback"])
@pytest.mark.parametrize("epsilon", [None, 1e-3])
def test_a_norm_behind_the_residual_is_part_of_it(epsilon: float | None, library: bool) -> None:
    after = ("Gemm", ["normal", "square", "b2"], "out")
    norm = (*NORM[:3], {"axis": -1} | ({} if epsilon is None else {"epsilon": epsilon}))
    proto, kinds = rounded([FIRST, *FORMS["gelu"], SECOND, RESIDUAL, norm, after], "normal")
    ours = {"QuantizeRows": 2, "RequantizeProduct": 1, "DequantizeProduct": 2}
    assert kinds == ours | {"MatMulInteger": 3, "Identity": 1}
    x = np.random.default_rng(1).standard_normal((9, WIDTH)).astype(np.float32)
    w = weights()
    summed = integers(ACTIVATIONS["gelu"](integers(x, w["w1"], w["b1"])), w["w2"], w["b2"]) + x
    expected = normalized(summed, epsilon or 1e-5) * w["scale"] + w["shift"]
    assert np.abs(run(proto, x, library)[1] - expected).max() < 0.02


def test_other_norms_stay() -> None:
    chain = [FIRST, *FORMS["gelu"], SECOND, RESIDUAL]
    _, kinds = rounded([*chain, NORM, END_NORMAL], "summed")
    assert kinds["LayerNormalization"] == 1, "something else reads the sum"
    for changed in (
        ("LayerNormalization", ["summed", "scale"], "normal", {"axis": -1}),
        ("LayerNormalization", ["summed", "x", "shift"], "normal", {"axis": -1}),
        ("LayerNormalization", ["summed", "scale", "shift"], "normal", {"axis": 0}),
        ("LayerNormalization", ["summed", "scale", "shift"], "normal", {"axis": -1, "epsilon": 2.0}),
    ):
        _, kinds = rounded([*chain, changed, END_NORMAL])
        assert kinds["LayerNormalization"] == 1
    _, kinds = rounded([*chain, NORM, END_NORMAL])
    assert kinds["LayerNormalization"] == 0


@pytest.mark.parametrize("norm", [[END], [NORM, END_NORMAL]], ids=["plain", "norm"])
def test_a_batch_without_rows_runs(norm: list[tuple[Any, ...]]) -> None:
    proto, _ = rounded([FIRST, *FORMS["gelu"], SECOND, RESIDUAL, *norm])
    assert run(proto, np.zeros((0, WIDTH), np.float32))[0].shape == (0, WIDTH)


def test_what_something_else_reads_stays() -> None:
    middle = ("Gelu", ["wide"], "active")
    _, kinds = rounded([FIRST, middle, SECOND, RESIDUAL, END], "active")
    assert (kinds["RequantizeProduct"], kinds["Gelu"]) == (0, 0)
    _, kinds = rounded([FIRST, middle, SECOND, RESIDUAL, END], "wide")
    assert (kinds["RequantizeProduct"], kinds["Gelu"]) == (0, 1)
    _, kinds = rounded([FIRST, middle, SECOND, RESIDUAL, END], "narrow")
    assert kinds["Add"] == 1
    for name in ("wide", "halved", "cube", "tanh"):
        _, kinds = rounded([FIRST, *GELU_NEW, SECOND, RESIDUAL, END], name)
        assert kinds["Tanh"] == 1


def test_other_additions_are_no_bias_and_no_residual() -> None:
    one_row = ("Add", ["narrow", "b2"], "summed")
    _, kinds = rounded([FIRST, *FORMS["gelu"], SECOND, one_row, END])
    assert kinds["Add"] == 1
    plain = ("MatMul", ["active", "w2"], "narrow")
    _, kinds = rounded([FIRST, *FORMS["gelu"], plain, one_row, END])
    assert kinds["Add"] == 0
    doubled = ("Add", ["narrow", "narrow"], "summed")
    _, kinds = rounded([FIRST, *FORMS["gelu"], SECOND, doubled, END])
    assert kinds["Add"] == 1


def test_a_graph_output_keeps_its_name_and_its_floats() -> None:
    x = np.random.default_rng(2).standard_normal((5, WIDTH)).astype(np.float32)
    w = weights()
    wide = integers(x, w["w1"], w["b1"])
    proto, kinds = rounded([FIRST, ("Gelu", ["wide"], "out")])
    assert [output.name for output in proto.graph.output] == ["out"]
    assert kinds["Gelu"] == 0
    np.testing.assert_allclose(run(proto, x)[0], ACTIVATIONS["gelu"](wide), rtol=1e-5, atol=1e-5)
    # Another layer reads it too, which rounds it.
    proto, kinds = rounded([FIRST, ("Gelu", ["wide"], "out"), ("Gemm", ["out", "w2", "b2"], "narrow")], "narrow")
    assert (kinds["RequantizeProduct"], kinds["QuantizeRows"]) == (0, 2)
    np.testing.assert_allclose(run(proto, x)[0], ACTIVATIONS["gelu"](wide), rtol=1e-5, atol=1e-5)
    proto, _ = rounded([FIRST, ("Gemm", ["wide", "w2", "b2"], "narrow"), ("Add", ["narrow", "x"], "out")])
    assert np.abs(run(proto, x)[0] - (integers(wide, w["w2"], w["b2"]) + x)).max() < 0.02


def test_a_weight_that_is_read_both_ways_is_rounded_both_ways() -> None:
    proto, kinds = rounded([("MatMul", ["x", "w1"], "wide"), ("Gemm", ["wide", "w1"], "tied", {"transB": 1}), END_TIED])
    assert kinds["MatMulInteger"] == 2
    x = np.random.default_rng(3).standard_normal((5, WIDTH)).astype(np.float32)
    w, none = weights()["w1"], np.zeros(1, np.float32)
    expected = integers(integers(x, w, none), np.ascontiguousarray(w.T), none)
    assert np.abs(run(proto, x)[0] - expected).max() < 0.02


def test_layers_of_other_than_rows_stay() -> None:
    values = {"w": np.ones((4, 4), np.float32), "v": np.ones((4, 4), np.float32)}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["cubes", "w"], ["a"]), helper.make_node("MatMul", ["rows", "v"], ["b"])],
        "ranks",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in RANKS.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "ab"],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    )
    int8.quantise(model)
    assert Counter(node.op_type for node in model.graph)["MatMul"] == 1
    assert set(model.graph.initializers) == {"w", "v_int8", "v_scale", "int8_zero_point"}
