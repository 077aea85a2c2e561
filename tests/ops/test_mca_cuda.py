"""McaAttention's CUDA kernels on the test device, against the NumPy reference and the CPU operator."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES as ALL_CASES
from cases import Case, defaults, make_inputs, same_bits, split, take
from devices import RAGGED_ON_HOST
from harness import BY_NAME, Array, AttributeValue, offsets, run
from harness_cuda import DATA_TYPES, library_path, run_on_device
from mca_cases import ESTIMATORS, mca_inputs
from mca_on_device import TOLERANCE, approximates, check, device, rounded

from attenuator.errors import EngineError
from attenuator.ops.mca import reference, reference_plan, rule
from attenuator.ops.softmax.reference import softmax_attention

# Importance has tests of its own.
CASES = [case for case in ALL_CASES if case.operator.key == "mca" and "importance" not in case.attributes]
ORDERS = ("forward", "backward", "1")
MARGIN = 2e-4  # relative, of an alpha: far more than rounding moves a decision


def test_the_library_is_built() -> None:
    assert Path(library_path()).is_file(), f"{library_path()} is missing: `make test` builds it"


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_variant(case: Case, data: str) -> None:
    inputs = make_inputs(case, (17, 64, 1, 0, 5, 33))
    flops = check(inputs, case.attributes, data)
    # Of row 0 alone tokens are mixed before they are projected, in every type.
    assert (flops.min() < 1.0) == (approximates(case.attributes, data) or case.attributes.get("queries") == "first")


def test_the_batch_that_every_operator_is_tested_with_is_approximated() -> None:
    """Otherwise the tests that all operators share would run exact attention only."""
    case = defaults(BY_NAME["mca"])
    assert device(make_inputs(case, RAGGED_ON_HOST), case.attributes)[1].min() < 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("heads", "head_dim", "channels"), [(1, 8, 200), (3, 12, 97), (2, 48, 96), (1, 80, 150), (1, 130, 60)]
)
def test_odd_shapes_of_ragged_batches(estimator: str, heads: int, head_dim: int, channels: int) -> None:
    inputs = mca_inputs((64, 0, 1, 110), heads, head_dim, channels)
    inputs["alpha"][0] = 1.0
    flops = check(inputs, {"num_heads": heads, "estimator": estimator, "layer": 3})
    assert flops[0] < 1.0, "nothing was approximated"


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_half_types(estimator: str, data: str) -> None:
    inputs = mca_inputs((70, 1, 40), 2, 32, 200)
    flops = check(inputs, {"num_heads": 2, "estimator": estimator}, data)
    assert (flops.min() < 1.0) == (estimator == "paper")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("window", [3, 50, 200])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_windows(estimator: str, window: int, global_tokens: int) -> None:
    inputs = mca_inputs((90, 17, 0, 150), 1, 24, 260)
    attributes: dict[str, AttributeValue] = {"window": window, "global_tokens": global_tokens}
    check(inputs, {"num_heads": 1, "estimator": estimator, **attributes})


def questions(
    inputs: dict[str, Array],
    attributes: dict[str, AttributeValue],
    probe: Callable[[int, int, int | None], rule.Probe] = rule.probe_of,
) -> list[dict[str, Any]]:
    """The arguments of each call of `probe_pays` by the reference, in order of heads, with any probe."""
    calls: list[dict[str, Any]] = []

    def record(*arguments: object) -> bool:
        calls.append(dict(inspect.signature(reference_plan.probe_pays).bind(*arguments).arguments))
        return reference_plan.probe_pays(**calls[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "probe_pays", record)
        patch.setattr(reference, "probe_of", probe)
        reference.mca_attention(**inputs, **attributes)  # type: ignore[arg-type]
    return calls


def answers(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> list[bool]:
    return [reference_plan.probe_pays(**question) for question in questions(inputs, attributes)]


def threshold(question: dict[str, Any]) -> float:
    """The alpha from which on the answer is yes."""
    low, high = 0.0, 1.0
    for _ in range(30):
        alpha = (low + high) / 2
        low, high = (low, alpha) if reference_plan.probe_pays(**question | {"alpha": alpha}) else (alpha, high)
    return high


def alike(length: int, heads: int, head_dim: int, channels: int, sharpness: float) -> dict[str, Array]:
    """One sequence of rows with much in common, which `deterministic` too approximates; alpha 1."""
    inputs = mca_inputs((length,), heads, head_dim, channels, sharpness=sharpness)
    inputs["hidden"] += 2 * np.random.default_rng(1).standard_normal(channels).astype(np.float32)
    inputs["alpha"][:] = 1.0
    return inputs


def repeated(inputs: dict[str, Array], alphas: Sequence[float]) -> dict[str, Array]:
    """One sequence for every alpha."""
    tokens = {name: np.tile(inputs[name], (len(alphas), 1)) for name in ("query", "key", "hidden")}
    cu_seqlens = offsets([len(inputs["key"])] * len(alphas))
    seed = np.repeat(inputs["seed"], len(alphas))
    return inputs | tokens | {"alpha": np.array(alphas, np.float32), "cu_seqlens": cu_seqlens, "seed": seed}


# What a length changes is apart from what an estimator changes: each of the two longest, which take seconds, has one.
@pytest.mark.parametrize(
    ("estimator", "length", "window", "global_tokens", "head_dim", "channels"),
    [
        (estimator, *shape)
        for estimator in ("sampled", "deterministic")
        for shape in (
            (65, 0, 0, 8, 300),
            (65, 0, 0, 136, 300),  # blocks of 32 rows
            (200, 0, 0, 12, 300),
            (768, 0, 0, 8, 600) if estimator == "sampled" else (769, 0, 0, 8, 1600),
            (420, 40, 0, 8, 400),
            (420, 40, 1, 8, 400),
        )
    ],
)
def test_probes_that_say_no_and_probes_that_say_yes(
    estimator: str, length: int, window: int, global_tokens: int, head_dim: int, channels: int
) -> None:
    """At alphas just below, between and above the thresholds of two heads: 0, 1 and 2 probes say that it pays."""
    inputs = alike(length, 2, head_dim, channels, 0.1)
    probe = rule.probe_of(length, window)
    # The last rows of the probe matter; under a window a "no" is worth more than the maxima cost.
    last = probe.first_row + probe.rows
    inputs["query"][probe.first_row if window else last - 32 : last] *= np.float32(2.5 if window else 1.5)
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2,
        "estimator": estimator,
        "window": window,
        "global_tokens": global_tokens,
    }
    limits = [threshold(question) for question in questions(inputs, attributes)]
    low, high = sorted(limits)
    assert low * (1 + 4 * MARGIN) < high < 1

    # Other rows would put the limits elsewhere.
    wrong = [replace(probe, rows=32)]
    if length > 65:
        wrong += [replace(probe, rows=128)] if not window else [replace(probe, first_row=probe.first_row + 64)]
    for other in wrong:
        limits_of_other = [threshold(question) for question in questions(inputs, attributes, lambda *_, p=other: p)]
        assert np.abs(np.divide(limits_of_other, limits) - 1).max() > 2 * MARGIN

    inputs = repeated(inputs, [low * (1 - MARGIN), (low + high) / 2, high * (1 + MARGIN)])
    first = limits[0] == low
    assert answers(inputs, attributes) == [False, False, first, not first, True, True]
    flops = check(inputs, attributes)
    assert flops[0] == 1.0
    assert flops[2] < flops[1] < 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "probe_pays", lambda *_: True)
        without = reference.mca_attention(**inputs, **attributes)[1]  # type: ignore[arg-type]
    assert without[0] < 1.0, "the first sequence would be exact without a probe too"


@pytest.mark.parametrize("estimator", ["sampled", "deterministic"])
def test_all_maxima_may_take_back_what_the_probe_promised(estimator: str) -> None:
    inputs = alike(150, 1, 32, 300, 0.0)
    inputs["alpha"][:] = 0.47
    inputs["key"] *= 8 / np.linalg.norm(inputs["key"], axis=1, keepdims=True)
    # The probe's rows see all tokens alike, each of the others two of them, and one of these sees each.
    inputs["query"][64:] = inputs["key"][64:] + inputs["key"][:-64]
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "estimator": estimator}
    assert answers(inputs, attributes) == [True]
    assert check(inputs, attributes)[0] == 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("length", "window", "channels", "expected_calls"),
    [(64, 0, 300, 0), (65, 0, 300, 1), (128, 64, 300, 0), (129, 64, 300, 1), (769, 0, 900, 0)],
)
def test_who_is_asked(estimator: str, length: int, window: int, channels: int, expected_calls: int) -> None:
    """Not a head whose rows are all the probe's, nor one that is exact from the start, nor `paper`."""
    inputs = alike(length, 1, 8, channels, 0.02)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "estimator": estimator, "window": window}
    assert len(questions(inputs, attributes)) == (0 if estimator == "paper" else expected_calls)
    flops = check(inputs, attributes)
    assert (flops[0] < 1.0) == (length < 769 or estimator == "paper")


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_first_row_alone(window: int, global_tokens: int) -> None:
    inputs = mca_inputs((40, 1, 0, 90, 5), 2, 24, 50, first=True)
    inputs["alpha"][3] = 0
    attributes: dict[str, AttributeValue] = {"window": window, "global_tokens": global_tokens}
    check(inputs, {"num_heads": 2, "queries": "first", **attributes})
    assert not device(inputs, {"num_heads": 2, "queries": "first"})[0][2].any()


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_alpha_0_is_exact_attention(estimator: str, data: str) -> None:
    inputs = rounded(mca_inputs((50, 7), 2, 16, 30), data)
    inputs["alpha"][:] = 0
    output, flops = device(inputs, {"num_heads": 2, "estimator": estimator}, data)
    values = inputs["hidden"].astype(np.float64) @ inputs["value_weight"] + inputs["value_bias"]
    expected = softmax_attention(inputs["query"], inputs["key"], values, inputs["cu_seqlens"], num_heads=2)
    assert np.abs(output - expected).max() < TOLERANCE[data] * np.abs(expected).max()
    assert (flops == 1).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_from_tiny_to_the_largest_alpha(estimator: str) -> None:
    inputs = mca_inputs((60,) * 5, 1, 16, 150)
    inputs["alpha"] = np.array([1e-30, 0.02, 0.1, 0.5, 1.0], np.float32)
    flops = check(inputs, {"num_heads": 1, "estimator": estimator})
    assert (np.diff(flops) <= 0).all()
    assert flops[0] == 1
    assert flops[-1] < 0.7


def test_one_group_shares_its_largest_r() -> None:
    """Many tokens of equal r: who shares with whom hangs on the order of tokens, which has to be the CPU's."""
    inputs = mca_inputs((100,), 1, 16, 200)
    for k in range(4):
        inputs["key"][k::9] = inputs["key"][k]
    inputs["alpha"][:] = 1.0
    assert check(inputs, {"num_heads": 1})[0] < 1


def test_more_columns_than_are_listed_at_a_time() -> None:
    inputs = mca_inputs((130,), 1, 8, 1100, sharpness=0.0)
    inputs["alpha"][:] = 0.053
    assert 0 < check(inputs, {"num_heads": 1})[0] < 1


def test_zero_and_broken_weights() -> None:
    """A head without a weight is exact, as is one whose weight is not finite; so are columns of zeros."""
    inputs = mca_inputs((40,), 3, 16, 120)
    inputs["alpha"][:] = 1.0
    inputs["value_weight"][:, :16] = 0
    inputs["value_weight"][::2, 16:32] = 0
    inputs["value_weight"][5, 40] = np.inf
    for estimator in ESTIMATORS:
        attributes: dict[str, AttributeValue] = {"num_heads": 3, "estimator": estimator}
        output, flops = device(inputs, attributes)
        on_cpu, cpu_flops = run("mca", inputs, attributes)
        np.testing.assert_allclose(output[:, :32], on_cpu[:, :32], atol=2e-5)
        np.testing.assert_array_equal(np.isfinite(output), np.isfinite(on_cpu))
        np.testing.assert_allclose(flops, cpu_flops, rtol=1e-6)


def test_deterministic_stays_within_its_bound() -> None:
    inputs = mca_inputs((60, 33), 2, 16, 80)
    output, flops = device(inputs, {"num_heads": 2, "estimator": "deterministic"})
    assert flops.min() < 1
    values = inputs["hidden"].astype(np.float64) @ inputs["value_weight"] + inputs["value_bias"]
    exact = softmax_attention(inputs["query"], inputs["key"], values, inputs["cu_seqlens"], num_heads=2)
    for b, (begin, end) in enumerate(zip(inputs["cu_seqlens"][:-1], inputs["cu_seqlens"][1:], strict=True)):
        beta = np.linalg.norm(inputs["hidden"][begin:end], axis=1).mean()
        for head in (slice(0, 16), slice(16, 32)):
            error = np.linalg.norm(output[begin:end, head] - exact[begin:end, head], axis=1)
            assert (error <= inputs["alpha"][b] * beta * np.linalg.norm(inputs["value_weight"][:, head])).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sequence_does_not_depend_on_its_batch(case: Case) -> None:
    data = "float16" if case.attributes["global_tokens"] else "float"
    inputs = make_inputs(case, (17, 64, 1), seed=3)
    inputs["alpha"][:] = [0.5, 1.0, 0.0]
    together = split(case, run_on_device("mca", inputs, case.attributes, data), inputs)
    assert (together[1][1] < 1.0) == (approximates(case.attributes, data) or case.attributes["queries"] == "first")
    order = [2, 1]
    some = take(case, inputs, order)
    apart = split(case, run_on_device("mca", some, case.attributes, data), some)
    for place, b in enumerate(order):
        assert same_bits(apart[place], together[b])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_probed_sequence_does_not_depend_on_its_batch(estimator: str) -> None:
    inputs = mca_inputs((9, 140), 1, 20, 300, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "estimator": estimator}
    together = run_on_device("mca", inputs, attributes, "float")
    assert together[1][1] < 1.0, "nothing was approximated"
    alone = {name: inputs[name][9:] for name in ("query", "key", "hidden")} | {"cu_seqlens": offsets([140])}
    alone = inputs | alone | {name: inputs[name][1:] for name in ("alpha", "seed")}
    assert same_bits(run_on_device("mca", alone, attributes, "float"), [together[0][9:], together[1][1:]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (9, 1)])
def test_any_order_of_threads(estimator: str, window: int, global_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = mca_inputs((140, 9), 1, 20, 300, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    attributes: dict[str, AttributeValue] = {"window": window, "global_tokens": global_tokens}
    results = []
    for order in ORDERS:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        results.append(device(inputs, {"num_heads": 1, "estimator": estimator, **attributes}))
    assert results[0][1][0] < 1
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("name", ["query", "key", "hidden"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("queries", ["all", "first"])
def test_a_sequence_that_is_not_finite_is_nan_as_a_whole(name: str, estimator: str, queries: str) -> None:
    inputs = mca_inputs((64, 20, 10), 1, 16, 120, sharpness=0.1, first=queries == "first")
    inputs["alpha"][:] = 1.0
    rows = offsets([1, 1, 1]) if queries == "first" else inputs["cu_seqlens"]
    row = 1 if queries == "first" and name == "query" else 75
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "estimator": estimator, "queries": queries}
    before, flops_before = device(inputs, attributes)
    assert flops_before[0] < 1.0, "nothing was approximated"
    inputs[name][row, 3] = np.inf
    output, flops = device(inputs, attributes)
    assert np.isnan(output[rows[1] : rows[2]]).all()
    assert flops[1] == 1
    others = np.r_[0 : rows[1], rows[2] : rows[3]]
    assert same_bits([output[others], flops[[0, 2]]], [before[others], flops_before[[0, 2]]])


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_nothing_to_do(lengths: Sequence[int], queries: str) -> None:
    inputs = mca_inputs(lengths, 2, 8, 8, first=queries == "first")
    output, flops = device(inputs, {"num_heads": 2, "queries": queries})
    assert not output.any()
    assert flops.tolist() == [1.0] * len(lengths)


def test_more_sequences_than_a_launch_takes() -> None:
    lengths = [1, 2, 0, 5] * 20
    check(mca_inputs(lengths, 1, 8, 30), {"num_heads": 1})


def test_seed_and_layer_choose_the_samples() -> None:
    inputs = mca_inputs((60,), 1, 16, 150)
    inputs["alpha"][:] = 1.0
    one = device(inputs, {"num_heads": 1})[0]
    other_seed = device(inputs | {"seed": inputs["seed"] + 1}, {"num_heads": 1})[0]
    other_layer = device(inputs, {"num_heads": 1, "layer": 1})[0]
    assert np.abs(one - other_seed).max() > 1e-3
    assert np.abs(one - other_layer).max() > 1e-3


def test_refusals_are_those_of_the_cpu() -> None:
    inputs = mca_inputs((3, 4), 2, 8, 8)
    inputs["alpha"][1] = 1.5
    with pytest.raises(EngineError, match=r"McaAttention: alpha\[1\] is 1.5, must be in \[0, 1\]"):
        device(inputs, {"num_heads": 2})


@pytest.mark.parametrize("window", [0, 90])
def test_scores_that_wait_in_shared_memory_are_those_computed_again(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory of sm_86, sm_80 and sm_90: none, two and all but one of a block's tiles of keys wait there."""
    inputs = mca_inputs((300, 140), 1, 64, 500)
    inputs["alpha"][:] = 1.0
    runs = []
    for shared_bytes in (99 * 1024, 163 * 1024, 227 * 1024):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_SHARED", str(shared_bytes))
        runs.append(device(inputs, {"num_heads": 1, "window": window, "global_tokens": int(window > 0)}))
    assert runs[0][1].max() < 1.0
    assert all(same_bits(outputs, runs[0]) for outputs in runs[1:])
