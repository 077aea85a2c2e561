"""Attention to a row that stands for several, by the CUDA kernels on the test device."""

from typing import Any

import numpy as np
import pytest
import relative_cases
from cases import same_bits
from harness import Array, offsets, run
from harness_cuda import DATA_TYPES, run_on_device
from importance_cases import BANDS, KINDS, attention_inputs, gaps, unmerged
from mca_cases import mca_inputs

from attenuator.ops.relative.reference import relative_attention
from attenuator.ops.softmax.reference import attention_importance, softmax_attention

LENGTHS = (17, 1, 150, 0, 64, 129)
MORE = (3, 40, 1000, 0, 0, 1)
TOLERANCE = {"float": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
every_type = pytest.mark.parametrize("data", DATA_TYPES)


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """As the device sees them, in float32."""
    return {
        name: value.astype(DATA_TYPES[data]).astype(np.float32) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }


@every_type
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_softmax_equals_the_reference(band: tuple[int, int], queries: str, kind: str, data: str) -> None:
    inputs = attention_inputs(LENGTHS, first=queries == "first") | unmerged(LENGTHS, MORE)
    attributes: dict[str, Any] = {"num_heads": 2, "window": band[0], "global_tokens": band[1], "queries": queries}
    output, importance = run_on_device("softmax", inputs, attributes | {"importance": kind}, data)
    seen = rounded(inputs, data)
    np.testing.assert_allclose(output, softmax_attention(**seen, **attributes), rtol=0, atol=TOLERANCE[data])
    del seen["value"]
    weighed = attention_importance(**seen, **attributes, importance=kind)
    np.testing.assert_allclose(importance, weighed, rtol=0, atol=1e-5)


@every_type
@pytest.mark.parametrize("head_dim", [32, 64, 100, 128, 200])
def test_every_shape_of_tile(head_dim: int, data: str) -> None:
    inputs = attention_inputs((65, 200, 128), 1, head_dim, head_dim) | unmerged((65, 200, 128), (7, 30, 90))
    [output] = run_on_device("softmax", inputs, {"num_heads": 1}, data)
    expected = softmax_attention(**rounded(inputs, data), num_heads=1)
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE[data])


@every_type
@pytest.mark.parametrize("head_dim", [20, 64, 100, 200])
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("kind", KINDS)
def test_relative_equals_the_reference(kind: str, queries: str, head_dim: int, data: str) -> None:
    inputs = relative_cases.attention_inputs(LENGTHS, 1, head_dim, head_dim, first=queries == "first")
    inputs |= unmerged(LENGTHS, MORE) | {"positions": gaps(LENGTHS)}
    attributes: dict[str, Any] = {"num_heads": 1, "queries": queries, "importance": kind}
    output, importance = run_on_device("relative", inputs, attributes, data)
    expected, weighed = relative_attention(**rounded(inputs, data), **attributes)
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE[data] * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(importance, weighed, rtol=0, atol=2e-5)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("estimator", "alpha"), [("deterministic", 0.5), ("deterministic", 0.0), ("sampled", 0.5)])
def test_mca_equals_the_cpu(estimator: str, alpha: float, queries: str) -> None:
    inputs = mca_inputs(LENGTHS, 2, 24, 160, first=queries == "first") | unmerged(LENGTHS, MORE)
    inputs["alpha"][:] = alpha
    attributes: dict[str, Any] = {"num_heads": 2, "queries": queries, "estimator": estimator, "importance": "maximum"}
    ours, theirs = run_on_device("mca", inputs, attributes), run("mca", inputs, attributes)
    for actual, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-4)
    lone = {name: value for name, value in inputs.items() if name != "unmerged_cu_seqlens"}
    assert not same_bits(ours, run_on_device("mca", lone, attributes)), "the input counts"


@pytest.mark.parametrize("operator", ["softmax", "mca"])
@pytest.mark.parametrize("kind", KINDS)
def test_where_no_row_is_a_mean_the_bits_are_those_without_the_input(operator: str, kind: str) -> None:
    inputs = attention_inputs(LENGTHS) if operator == "softmax" else mca_inputs(LENGTHS, 2, 24, 160)
    attributes: dict[str, Any] = {"num_heads": 2, "importance": kind}
    for data in ("float", "float16"):
        without = run_on_device(operator, inputs, attributes, data)
        with_it = run_on_device(operator, inputs | {"unmerged_cu_seqlens": inputs["cu_seqlens"]}, attributes, data)
        assert same_bits(without, with_it)


@every_type
def test_a_sequence_alone_gives_its_bits(data: str) -> None:
    inputs = attention_inputs(LENGTHS)
    attributes: dict[str, Any] = {"num_heads": 2, "importance": "maximum"}
    together = run_on_device("softmax", inputs | unmerged(LENGTHS, MORE), attributes, data)
    for b, (length, more) in enumerate(zip(LENGTHS, MORE, strict=True)):
        rows = slice(sum(LENGTHS[:b]), sum(LENGTHS[: b + 1]))
        alone = {name: inputs[name][rows] for name in ("query", "key", "value")} | {"cu_seqlens": offsets([length])}
        outputs = run_on_device("softmax", alone | unmerged([length], [more]), attributes, data)
        assert same_bits(outputs, [output[rows] for output in together])
