"""The ONNX functions, run by ONNX Runtime without the operator library, against the NumPy references."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from cases import CASES, Case, at_exact_values, make_inputs, run_case
from harness import open_session
from onnx import TensorProto, helper

from attenuator.export.fallback import function
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.ops import DOMAIN
from attenuator.ops.linformer.reference import linformer_attention
from attenuator.ops.mca.reference import mca_attention
from attenuator.ops.pool.reference import sequence_pool
from attenuator.ops.relative.reference import relative_attention
from attenuator.ops.rfa.reference import rfa_attention
from attenuator.ops.softmax.reference import attention_importance, softmax_attention
from attenuator.ops.yoso.reference import yoso_attention

TYPES = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8}
BATCHES = {
    "ragged": [3, 1, 9, 2],
    "empty-inside": [2, 0, 5],
    "empty-ends": [0, 4, 1, 0],
    "ones": [1, 1, 1],
    "one": [1],
    "all-empty": [0, 0],
    "no-sequence": [],
}
HEADS, WIDTH, CHANNELS = 3, 10, 14


def run(key: str, inputs: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> list[np.ndarray]:
    """One node, its function and no library. Attributes are always all there, as export writes them."""
    operator = OPERATOR_BY_KEY[key]
    names = [item.name if item.name in inputs else "" for item in operator.inputs]
    while not names[-1]:
        names.pop()
    whole = {item.name: item.default for item in operator.attributes} | dict(attributes)
    outputs = operator.outputs_with(whole)
    body = function(key, names, [item.name for item in outputs], 20)
    node = helper.make_node(
        operator.name, names, [item.name for item in outputs], domain=DOMAIN, overload=body.overload, **whole
    )
    graph = helper.make_graph(
        [node],
        "one_node",
        [
            helper.make_tensor_value_info(item.name, TYPES[item.dtype], [None] * len(item.axes))
            for item in operator.inputs
            if item.name in inputs
        ],
        [helper.make_tensor_value_info(item.name, TYPES[item.dtype], [None] * len(item.axes)) for item in outputs],
    )
    model = helper.make_model(
        graph,
        functions=[body],
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def packed(lengths: list[int], first: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs of every operator."""
    generator = np.random.default_rng(seed)
    total, batch = sum(lengths), len(lengths)

    def rows(count: int, width: int) -> np.ndarray:
        return generator.standard_normal((count, width)).astype(np.float32)

    return {
        "query": rows(batch if first else total, HEADS * WIDTH),
        "key": rows(total, HEADS * WIDTH),
        "value": rows(total, HEADS * WIDTH),
        "hidden": rows(total, CHANNELS),
        "value_weight": rows(CHANNELS, HEADS * WIDTH),
        "value_bias": rows(1, HEADS * WIDTH)[0],
        "conv_weight": rows(HEADS, 5),
        "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
        "alpha": np.zeros(batch, np.float32),
        "num_hashes": np.zeros(batch, np.int32),
        "seed": np.zeros(batch, np.int64),
        "buckets": np.array([0, 1, 2, 3, 5, 4, 4]),
        "pos_key": rows(6, HEADS * WIDTH),
        "pos_query": rows(6, HEADS * WIDTH),
        "bias": rows(6, HEADS),
        "key_projection": rows(HEADS * 4, 11),
        "value_projection": rows(HEADS * 4, 11),
        "positions": np.concatenate([np.arange(0), *(generator.integers(1, 3, n).cumsum() for n in lengths)]),
    }


def pick(inputs: Mapping[str, np.ndarray], key: str, *, without: str = "") -> dict[str, np.ndarray]:
    inputs_of = OPERATOR_BY_KEY[key].inputs
    return {item.name: inputs[item.name] for item in inputs_of if item.name in inputs and item.name != without}


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    "attributes",
    [{}, {"scale": 0.7}, {"window": 1}, {"window": 2, "global_tokens": 1}],
    ids=["full", "scale", "window", "global"],
)
def test_softmax(lengths: list[int], attributes: dict[str, Any], queries: str) -> None:
    whole = {"num_heads": HEADS, "queries": queries, **attributes}
    inputs = pick(packed(lengths, queries == "first"), "softmax")
    [output] = run("softmax", inputs, whole)
    expected = softmax_attention(**inputs, **whole)
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, atol=2e-6)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kind", ["first", "maximum"])
@pytest.mark.parametrize("window", [0, 2])
def test_importance_and_positions(lengths: list[int], queries: str, kind: str, window: int) -> None:
    whole = {"num_heads": HEADS, "queries": queries, "window": window, "global_tokens": 1, "importance": kind}
    inputs = packed(lengths, queries == "first") | {"positions": np.cumsum(np.arange(sum(lengths)) % 3 + 1)}
    weighed = {name: inputs[name] for name in ("query", "key", "cu_seqlens", "positions")}
    for key, outputs in (("softmax", 2), ("mca", 3)):
        results = run(key, pick(inputs, key), whole)
        assert len(results) == outputs
        np.testing.assert_allclose(results[-1], attention_importance(**weighed, **whole), atol=2e-6)
    exact = {name: value for name, value in whole.items() if name != "importance"}
    attended = softmax_attention(value=inputs["value"], **weighed, **exact)
    np.testing.assert_allclose(run("softmax", pick(inputs, "softmax"), whole)[0], attended, atol=2e-6)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("attributes", [{}, {"window": 2, "global_tokens": 1}], ids=["full", "global"])
def test_mca_computes_alpha_0(lengths: list[int], attributes: dict[str, Any], queries: str) -> None:
    whole = {"num_heads": HEADS, "queries": queries, **attributes}
    inputs = pick(packed(lengths, queries == "first"), "mca")
    output, value_flops = run("mca", inputs, whole)
    expected, expected_flops = mca_attention(**inputs, **whole)
    np.testing.assert_allclose(output, expected, atol=2e-5)
    np.testing.assert_array_equal(value_flops, expected_flops.astype(np.float32))


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(("normalize", "norm_lift"), [(0, 0.0), (1, 0.0), (2, 0.0), (2, 9.0), (1, 30.0)])
@pytest.mark.parametrize("conv", [False, True], ids=["plain", "conv"])
def test_yoso_computes_the_expectation(
    lengths: list[int], normalize: int, norm_lift: float, conv: bool, queries: str
) -> None:
    whole = {
        "num_heads": HEADS, "hash_bits": 7, "normalize": normalize, "norm_lift": norm_lift, "queries": queries
    }  # fmt: skip
    inputs = pick(packed(lengths, queries == "first"), "yoso", without="" if conv else "conv_weight")
    if len(inputs["key"]):
        inputs["key"][0] = 0  # a zero row has no direction
    [output] = run("yoso", inputs, whole)
    np.testing.assert_allclose(output, yoso_attention(**inputs, **whole), atol=3e-6)


TABLES = {
    "key": ["pos_key"],
    "query-places": ["pos_query", "positions"],
    "bias": ["bias"],
    "key-bias": ["pos_key", "bias"],
}


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
def test_relative(lengths: list[int], tables: list[str], queries: str) -> None:
    """Nodes leave optional inputs out before others that they have."""
    everything = packed(lengths, queries == "first")
    inputs = {name: everything[name] for name in ("query", "key", "value", "cu_seqlens", "buckets", *tables)}
    whole = {"num_heads": HEADS, "queries": queries, "scale": 0.2}
    [output] = run("relative", inputs, whole)
    np.testing.assert_allclose(output, relative_attention(**inputs, **whole)[0], atol=3e-6)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_linformer(lengths: list[int], own: bool, queries: str) -> None:
    """One projection for keys and values, and one for each; sequences are shorter than the projections are wide."""
    whole = {"num_heads": HEADS, "queries": queries, "scale": 0.3}
    inputs = pick(packed(lengths, queries == "first"), "linformer", without="" if own else "value_projection")
    [output] = run("linformer", inputs, whole)
    np.testing.assert_allclose(output, linformer_attention(**inputs, **whole), atol=1e-5)


@pytest.mark.parametrize("mode", ["first", "mean"])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_pool(lengths: list[int], mode: str) -> None:
    inputs = pick(packed(lengths, False), "pool")
    [output] = run("pool", inputs, {"mode": mode})
    np.testing.assert_allclose(output, sequence_pool(**inputs, mode=mode), atol=1e-6)


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_every_row_is_kept(lengths: list[int]) -> None:
    """With any share asked for: functions ignore knobs."""
    inputs = packed(lengths, False)
    keep = {"cu_seqlens": inputs["cu_seqlens"], "keep": np.full(len(lengths), 0.3, np.float32)}
    [kept_cu_seqlens] = run("kept_lengths", keep, {"exponent": 0.5})
    np.testing.assert_array_equal(kept_cu_seqlens, inputs["cu_seqlens"])
    rows = {"rows": inputs["hidden"], "importance": inputs["hidden"][:, 0], "cu_seqlens": inputs["cu_seqlens"]}
    kept, places = run("select", rows | {"kept_cu_seqlens": kept_cu_seqlens}, {})
    np.testing.assert_array_equal(kept, inputs["hidden"])
    np.testing.assert_array_equal(places, np.arange(sum(lengths)))


def test_sequences_do_not_see_each_other() -> None:
    inputs = pick(packed([4, 3], False), "softmax")
    [before] = run("softmax", inputs, {"num_heads": HEADS})
    inputs["value"][4:] += 100
    inputs["key"][4:] += 100
    [after] = run("softmax", inputs, {"num_heads": HEADS})
    np.testing.assert_allclose(after[:4], before[:4], atol=1e-6)
    assert np.abs(after[4:] - before[4:]).min() > 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operator_at_its_exact_value(case: Case) -> None:
    """The functions compute what the library's kernels compute."""
    inputs = at_exact_values(case, make_inputs(case, (3, 0, 33, 1)))
    for actual, expected in zip(run(case.operator.key, inputs, case.attributes), run_case(case, inputs), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def test_nodes_that_differ_in_what_they_have_share_a_model() -> None:
    """One model with all four: with and without `positions`, with and without `importance`."""
    operator = OPERATOR_BY_KEY["softmax"]
    lengths = [4, 1, 7]
    inputs = pick(packed(lengths, False), "softmax") | {"positions": np.arange(12) * 3}
    nodes, functions, results = [], {}, []
    for places, importance in itertools.product((False, True), ("none", "maximum")):
        attributes = {item.name: item.default for item in operator.attributes}
        attributes |= {"num_heads": HEADS, "window": 4, "importance": importance}
        names = ["query", "key", "value", "cu_seqlens", *(["positions"] if places else [])]
        outputs = operator.outputs_with(attributes)
        body = function("softmax", names, [item.name for item in outputs], 20)
        functions[body.overload] = body
        results.append([f"{item.name}_{len(nodes)}" for item in outputs])
        nodes.append(
            helper.make_node(operator.name, names, results[-1], domain=DOMAIN, overload=body.overload, **attributes)
        )
    assert len(functions) == 4
    graph = helper.make_graph(
        nodes,
        "four_nodes",
        [
            helper.make_tensor_value_info(item.name, TYPES[item.dtype], [None] * len(item.axes))
            for item in operator.inputs
            if item.name in inputs
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * axes)
            for names in results
            for name, axes in zip(names, (2, 1), strict=False)
        ],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, functions=functions.values(), opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    plain = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kernels = open_session(model.SerializeToString())
    for without, with_library in zip(plain.run(None, inputs), kernels.run(None, inputs), strict=True):
        np.testing.assert_allclose(without, with_library, atol=1e-5)
    bands = [kernels.run([names[0]], inputs)[0] for names in results]
    assert np.array_equal(bands[0], bands[1])
    assert np.array_equal(bands[2], bands[3])
    assert not np.allclose(bands[0], bands[2])


def test_rfa_cuts_trained_factors_as_the_kernel_does() -> None:
    """With the width 1,000 a factor beyond +-1,000 counts as 1 / sigma = 1."""
    inputs = pick(packed([4, 7], False), "rfa") | {
        "inverse_sigma": np.array([1e4, -1e4, 500.0], np.float32),
        "num_features": np.zeros(2, np.int32),
    }
    inputs = {item.name: inputs[item.name] for item in OPERATOR_BY_KEY["rfa"].inputs}
    attributes = {"num_heads": HEADS, "sigma": 1000.0}
    [output] = run("rfa", inputs, attributes)
    np.testing.assert_allclose(output, rfa_attention(**inputs, **attributes), atol=2e-6)
