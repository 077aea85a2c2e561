"""Attention to a row that stands for several, as their mean: its key counts that often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import relative_cases
from harness import Array, offsets, run
from importance_cases import BANDS, KINDS, attention_inputs, gaps, unmerged
from mca_cases import mca_inputs
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.export.selection import can_merge
from attenuator.ops import OPERATORS
from attenuator.ops.mca.reference import mca_attention
from attenuator.ops.relative.reference import relative_attention
from attenuator.ops.softmax.reference import attention_importance, softmax_attention
from attenuator.ops.spec import Operator

LENGTHS = (17, 1, 300, 0, 64, 129)
MORE = (3, 40, 1000, 0, 0, 1)
WEIGHED = ("query", "key", "cu_seqlens", "unmerged_cu_seqlens")
ATTENDING = [operator for operator in OPERATORS if operator.attention and can_merge(operator)]
every_operator = pytest.mark.parametrize("operator", ATTENDING, ids=lambda operator: operator.key)


def inputs_of(operator: Operator, lengths: Sequence[int]) -> dict[str, Array]:
    """Of two heads."""
    makers = {
        "softmax": attention_inputs,
        "mca": lambda lengths: mca_inputs(lengths, 2, 24, 160),
        "relative": lambda lengths: relative_cases.attention_inputs(tuple(lengths), 2, 20, 12),
    }
    return makers[operator.key](lengths)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(
    ("band", "kind", "scale"),
    [
        *((band, kind, 0.0) for band in BANDS for kind in ("none", *KINDS)),
        *(("all", kind, scale) for kind in KINDS for scale in (1e-3, 70.0, -0.5)),
    ],
)
def test_softmax_equals_the_reference(band: str, kind: str, scale: float, queries: str) -> None:
    window, global_tokens = BANDS[band]
    inputs = attention_inputs(LENGTHS, first=queries == "first") | unmerged(LENGTHS, MORE)
    if scale > 1:
        inputs["query"] *= 0.02
    attributes: dict[str, Any] = {
        "num_heads": 2, "scale": scale, "window": window, "global_tokens": global_tokens, "queries": queries
    }  # fmt: skip
    output, *importance = run("softmax", inputs, attributes | {"importance": kind})
    expected = softmax_attention(**inputs, **attributes)
    np.testing.assert_allclose(output, expected, atol=5e-6)
    if kind != "none":
        weighed = {name: inputs[name] for name in WEIGHED}
        wanted = attention_importance(**weighed, **attributes, importance=kind)
        np.testing.assert_allclose(importance[0], wanted, atol=5e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_mca_equals_the_reference(queries: str, alpha: float) -> None:
    inputs = mca_inputs(LENGTHS, 2, 24, 160, first=queries == "first") | unmerged(LENGTHS, MORE)
    inputs["alpha"][:] = alpha
    attributes: dict[str, Any] = {"num_heads": 2, "queries": queries, "estimator": "deterministic"}
    output, flops = run("mca", inputs, attributes)
    expected, spent = mca_attention(**inputs, **attributes)
    np.testing.assert_allclose(output, expected, atol=5e-5)
    np.testing.assert_allclose(flops, spent, rtol=1e-5)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tables", relative_cases.CHOICES, ids="-".join)
def test_relative_equals_the_reference(tables: tuple[str, ...], kind: str, queries: str, placed: bool) -> None:
    inputs = relative_cases.attention_inputs(LENGTHS, 2, 20, 12, tables, first=queries == "first")
    inputs |= unmerged(LENGTHS, MORE) | ({"positions": gaps(LENGTHS)} if placed else {})
    attributes: dict[str, Any] = {"num_heads": 2, "queries": queries, "importance": kind}
    output, importance = run("relative", inputs, attributes)
    expected, weighed = relative_attention(**inputs, **attributes)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(importance, weighed, atol=1e-5)


@pytest.mark.parametrize("times", [2, 65, 500])
def test_a_key_that_stands_for_several_counts_as_often_as_equal_keys(times: int) -> None:
    inputs = attention_inputs((40,))
    repeated = {name: np.concatenate([inputs[name], np.repeat(inputs[name][-1:], times - 1, axis=0)])
                for name in ("query", "key", "value")}  # fmt: skip
    [expected] = run("softmax", repeated | {"cu_seqlens": offsets([39 + times])}, {"num_heads": 2})
    [actual] = run("softmax", inputs | {"unmerged_cu_seqlens": offsets([39 + times])}, {"num_heads": 2})
    np.testing.assert_allclose(actual, expected[:40], atol=1e-5)


@every_operator
@pytest.mark.parametrize("kind", KINDS)
def test_where_no_row_is_a_mean_the_bits_are_those_without_the_input(operator: Operator, kind: str) -> None:
    inputs = inputs_of(operator, LENGTHS)
    attributes: dict[str, Any] = {"num_heads": 2, "importance": kind}
    without = run(operator.key, inputs, attributes)
    with_it = run(operator.key, inputs | {"unmerged_cu_seqlens": inputs["cu_seqlens"]}, attributes, threads=2)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(without, with_it, strict=True))


@pytest.mark.parametrize(
    ("starts", "sentence"),
    [
        ([0, 2, 2, 6], r"unmerged_cu_seqlens\[1\] - unmerged_cu_seqlens\[0\] is 2, must be at least 3, the rows of"),
        ([0, 3, 4, 8], r"unmerged_cu_seqlens\[2\] - unmerged_cu_seqlens\[1\] is 1, must be 0, since sequence 1 has no"),
        ([0, 9], r"unmerged_cu_seqlens has size 2 on axis 0, must be 4 \(as cu_seqlens has\)"),
    ],
)
@every_operator
def test_refusals(operator: Operator, starts: list[int], sentence: str) -> None:
    inputs = inputs_of(operator, (3, 0, 4)) | {"unmerged_cu_seqlens": np.array(starts, np.int32)}
    with pytest.raises(InvalidArgument, match=f"{operator.name}: {sentence}"):
        run(operator.key, inputs, {"num_heads": 2})
