"""McaAttention against its NumPy reference: values, samples, counted multiply-adds, refusals."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cases import RAGGED, Case, make_inputs, run_case, variants
from harness import BY_NAME, Array, AttributeValue, offsets, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.mca import reference, reference_plan, rule
from attenuator.ops.softmax.reference import probabilities, softmax_attention

WEIGHTS = ("value_weight", "value_bias")
ESTIMATORS = ("sampled", "deterministic", "paper")
APPROXIMATED = [case for case in variants(BY_NAME["mca"]) if case.attributes["queries"] == "all"]


def inputs(
    lengths: Sequence[int],
    heads: int,
    head_dim: int,
    channels: int,
    *,
    seed: int = 0,
    sharpness: float = 0.4,
    first: bool = False,
) -> dict[str, Array]:
    """Keys of very different weight, so that some tokens are exact and others take few columns."""
    rng = np.random.default_rng([seed, heads, head_dim, channels, *lengths])
    tokens, width = sum(lengths), heads * head_dim

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    key = normal(tokens, width) * np.exp(rng.normal(0, 0.7, (tokens, 1))).astype(np.float32)
    return {
        "query": normal(len(lengths) if first else tokens, width) * np.float32(sharpness),
        "key": key,
        "hidden": normal(tokens, channels) + 0.5 * normal(1, channels),
        "value_weight": normal(channels, width) * np.exp(rng.normal(0, 0.5, (channels, 1))).astype(np.float32),
        "value_bias": normal(width),
        "cu_seqlens": offsets(lengths),
        "alpha": rng.choice(np.array([0.15, 0.4, 1.0], np.float32), len(lengths)),
        "seed": rng.integers(0, 2**53, len(lengths)),
    }


def plans(
    given: dict[str, Array], attributes: dict[str, AttributeValue], b: int, head: int, factors: Sequence[float]
) -> list[Array]:
    """What a head decides of its tokens if all maxima are off by a factor: r, or 1 where replaced; 0 = exact: [n]."""
    heads = int(attributes["num_heads"])
    window, global_tokens = int(attributes.get("window", 0)), int(attributes.get("global_tokens", 0))
    estimator, alpha = str(attributes.get("estimator", "sampled")), float(given["alpha"][b])
    rows = slice(given["cu_seqlens"][b], given["cu_seqlens"][b + 1])
    length, channels, head_dim = rows.stop - rows.start, given["hidden"].shape[1], given["key"].shape[1] // heads
    block = slice(head * head_dim, (head + 1) * head_dim)
    weight, exact = given["value_weight"][:, block], np.zeros(length)
    if (
        length == 0
        or alpha == 0
        or attributes.get("queries") == "first"
        or not weight.any()
        or not rule.worth_approximating(length, channels, alpha, estimator, window, global_tokens)
    ):
        return [exact for _ in factors]
    keys, wide_first = rule.row_keys(length, window, global_tokens)
    scale = float(attributes.get("scale", 0.0))
    a = probabilities(given["query"][rows, block], given["key"][rows, block], scale, window, global_tokens)
    x = given["hidden"][rows].astype(np.float64)
    distances = np.linalg.norm(x - x.mean(axis=0), axis=1)
    beta = reference.smallest_row_sum(np.linalg.norm(x, axis=1), window, global_tokens) / keys
    overhead = channels * (1 + length / head_dim) if wide_first else 0.0
    probe = rule.probe_of(length, window)

    def plan(factor: float) -> Array:
        if probe.rows and estimator != "paper":
            maxima = factor * a[probe.first_row : probe.first_row + probe.rows].max(axis=0)
            to_save = overhead + rule.maxima_cost(length, window, head_dim)
            if not reference_plan.promising(maxima, distances, weight, keys, alpha, estimator, probe, to_save, beta):
                return exact
        maxima = factor * a[int(wide_first) :].max(axis=0)
        if estimator == "deterministic":
            dropped = reference_plan.replaced(distances, weight, maxima, keys, alpha, beta)
            return dropped.astype(float) if channels * (dropped.sum() - 1) > overhead else exact
        wanted = reference_plan.wanted_samples(maxima, keys, alpha)
        if estimator == "paper":
            r = np.minimum(np.maximum(1.0, np.ceil(wanted)), channels)
            return np.where(r < channels, r, 0) if (channels - r).sum() >= overhead else exact
        r, sampled = reference_plan.samples_of(wanted, channels)
        pays = reference_plan.worth_sampling(sampled.sum(), r[sampled].sum(), channels, head_dim, overhead)
        return np.where(sampled, r, 0) if pays else exact

    return [plan(factor) for factor in factors]


def clear_heads(given: dict[str, Array], attributes: dict[str, AttributeValue]) -> Array:
    """Where r and the choice of rows do not hang on the rounding of float32: [B, H]."""
    rounding = 1e-5 if attributes.get("estimator") == "deterministic" else 1e-6
    clear = np.ones((len(given["alpha"]), int(attributes["num_heads"])), bool)
    for b, h in np.ndindex(clear.shape):
        clear[b, h] = np.array_equal(*plans(given, attributes, b, h, (1 - rounding, 1 + rounding)))
    return clear


def check(given: dict[str, Array], attributes: dict[str, AttributeValue], threads: int = 1) -> Array:
    """Compares every clear head with the reference; returns value_flops."""
    output, flops = run("mca", given, attributes, threads, WEIGHTS)
    expected, expected_flops = reference.mca_attention(**given, **attributes)  # type: ignore[arg-type]
    clear = clear_heads(given, attributes)
    assert clear.mean() > 0.7
    rows = np.arange(len(given["alpha"])) if attributes.get("queries") == "first" else None
    if rows is None:
        rows = np.repeat(np.arange(len(given["alpha"])), np.diff(given["cu_seqlens"]))
    heads = int(attributes["num_heads"])
    shape = (len(rows), heads, -1)
    error = np.abs(output - expected).reshape(shape).max(axis=2, initial=0)
    size = np.abs(expected).max(initial=1)
    assert error[clear[rows]].max(initial=0) < 2e-5 * size
    whole = clear.all(axis=1)
    np.testing.assert_allclose(flops[whole], expected_flops[whole], rtol=1e-6)
    return flops


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("heads", "head_dim", "channels"),
    [(1, 8, 200), (3, 12, 97), (2, 16, 64), (2, 31, 230), (2, 48, 96), (2, 64, 256), (1, 80, 257), (1, 256, 100)],
)
def test_odd_shapes_of_ragged_batches(estimator: str, heads: int, head_dim: int, channels: int) -> None:
    given = inputs((70, 0, 1, 130, 5, 64, 65), heads, head_dim, channels)
    given["alpha"][[3, 5]] = 1.0
    flops = check(given, {"num_heads": heads, "estimator": estimator, "layer": 3})
    assert flops[5] < 1.0, "nothing was approximated without a probe"
    assert flops[3] < 1.0 or channels < 200, "nothing was approximated after a probe"


@pytest.mark.parametrize("case", APPROXIMATED, ids=str)
def test_the_batch_that_every_operator_is_tested_with_is_approximated(case: Case) -> None:
    """Else the promises that all operators share would be checked of exact attention alone."""
    assert run_case(case, make_inputs(case, RAGGED))[1].min() < 1.0, "nothing was approximated"


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("window", [3, 16, 50, 200])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_windows(estimator: str, window: int, global_tokens: int) -> None:
    given = inputs((120, 17, 0, 300, 4), 2, 24, 260, sharpness=0.1)
    given["alpha"][0] = 1.0
    attributes: dict[str, AttributeValue] = {"window": window, "global_tokens": global_tokens}
    flops = check(given, {"num_heads": 2, "estimator": estimator, **attributes})
    assert flops.min() < 1.0, "nothing was approximated"


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_first_row_alone_is_exact_and_counted(window: int, global_tokens: int, estimator: str) -> None:
    given = inputs((40, 1, 0, 90, 5), 2, 24, 50, first=True)
    given["alpha"][3] = 0
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2,
        "queries": "first",
        "window": window,
        "global_tokens": global_tokens,
        "estimator": estimator,
    }
    flops = check(given, attributes)
    values = given["hidden"].astype(np.float64) @ given["value_weight"] + given["value_bias"]
    exact = softmax_attention(
        given["query"],
        given["key"],
        values,
        given["cu_seqlens"],
        num_heads=2,
        window=window,
        global_tokens=global_tokens,
        queries="first",
    )
    occupied = np.diff(given["cu_seqlens"]) > 0
    output = run("mca", given, attributes, 1, WEIGHTS)[0]
    assert np.abs(output - exact)[occupied].max() < 1e-4
    lengths = np.diff(given["cu_seqlens"])
    keys = np.minimum(lengths, window + 1) if window and not global_tokens else lengths
    assert flops[3] == 1.0, "alpha 0 projects every token"
    assert flops[1] == 1.0, "one token has nothing to mix"
    for b in (0, 4):  # (A X) W_v spends keys C H + C H D multiply-adds instead of n C H D
        assert flops[b] == pytest.approx(keys[b] / (lengths[b] * 24) + 1 / lengths[b])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (9, 0), (9, 1)])
def test_alpha_zero_is_exact_softmax_attention(estimator: str, window: int, global_tokens: int) -> None:
    given = inputs((33, 0, 1, 200), 2, 40, 70)
    given["alpha"][:] = 0
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "window": window, "global_tokens": global_tokens}
    output, flops = run("mca", given, {**attributes, "estimator": estimator}, 1, WEIGHTS)
    value = (given["hidden"] @ given["value_weight"] + given["value_bias"]).astype(np.float32)
    plain = {name: given[name] for name in ("query", "key", "cu_seqlens")} | {"value": value}
    expected = run("softmax", plain, attributes)[0]
    assert np.abs(output - expected).max() < 1e-5 * np.abs(expected).max()
    assert (flops == 1.0).all()


def test_scale_attribute() -> None:
    given = inputs((120, 20), 2, 16, 300, sharpness=0.1)
    given["alpha"][0] = 1.0
    assert check(given, {"num_heads": 2, "scale": 0.9}).min() < 1.0, "nothing was approximated"
    plain = run("mca", given, {"num_heads": 2}, 1, WEIGHTS)
    standard = run("mca", given, {"num_heads": 2, "scale": 0.25}, 1, WEIGHTS)
    assert all(np.array_equal(a, b) for a, b in zip(plain, standard, strict=True))


def test_long_sequences_compute_scores_twice_where_that_can_pay() -> None:
    """2 n <= C above 768 tokens, on the parallel path."""
    given = inputs((1100,), 1, 8, 2304, sharpness=0.05)
    given["alpha"][:] = 1.0
    attributes: dict[str, AttributeValue] = {"num_heads": 1}
    assert check(given, attributes)[0] < 0.9
    one, three = (run("mca", given, attributes, threads, WEIGHTS) for threads in (1, 3))
    assert all(np.array_equal(a, b) for a, b in zip(one, three, strict=True))


def test_long_sequences_stay_exact_where_it_cannot_pay() -> None:
    given = inputs((769, 768), 1, 8, 600, sharpness=0.05)
    given["alpha"][:] = 1.0
    flops = check(given, {"num_heads": 1})
    assert flops[0] == 1.0
    assert flops[1] < 0.9


def test_an_alpha_too_small_to_save_anything_is_exact_from_the_start() -> None:
    """r is 1 / alpha^2 or more in the mean, which here is just above C and well below it."""
    given = inputs((120, 120), 1, 64, 400, sharpness=0.0)
    given["alpha"][:] = (0.0499, 0.12)
    flops = run("mca", given, {"num_heads": 1}, 1, WEIGHTS)[1]
    assert flops[0] == 1.0
    assert flops[1] < 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_weight_that_is_fed_gives_the_bits_of_a_constant_one(estimator: str) -> None:
    given = inputs((100, 30), 2, 24, 80)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "estimator": estimator}
    constant = run("mca", given, attributes, 1, WEIGHTS)
    for constants in ((), ("value_weight",), ("value_bias",)):
        fed = run("mca", given, attributes, 1, constants)
        assert all(np.array_equal(a, b) for a, b in zip(constant, fed, strict=True))


@pytest.mark.parametrize(("estimator", "random"), [("sampled", True), ("deterministic", False), ("paper", True)])
def test_seed_and_layer_choose_the_samples(estimator: str, random: bool) -> None:
    given = inputs((64, 64), 2, 32, 96)
    for name in ("query", "key", "hidden"):
        given[name][64:] = given[name][:64]
    given["alpha"][:] = 1.0
    given["seed"][:] = (5, 6)
    results = [
        run("mca", given, {"num_heads": 2, "estimator": estimator, "layer": layer}, 1, WEIGHTS)[0] for layer in (0, 1)
    ]
    assert np.array_equal(results[0][:64], results[0][64:]) != random
    assert np.array_equal(results[0], results[1]) != random
    given["seed"][:] = 5
    same = run("mca", given, {"num_heads": 2, "estimator": estimator}, 1, WEIGHTS)[0]
    assert np.array_equal(same[:64], same[64:])
    assert np.array_equal(same[:64], results[0][:64])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_zero_weights_are_exact(estimator: str) -> None:
    given = inputs((120, 12), 2, 16, 150, sharpness=0.1)
    given["alpha"][0] = 1.0
    given["value_weight"][:, :16] = 0  # a head without a distribution to sample from
    given["value_weight"][5:50, 16:] = 0  # columns that are never needed
    flops = check(given, {"num_heads": 2, "estimator": estimator})
    assert flops.min() < 1.0, "nothing was approximated"
    output = run("mca", given, {"num_heads": 2, "estimator": estimator}, 1, WEIGHTS)[0]
    np.testing.assert_allclose(output[:, :16], np.broadcast_to(given["value_bias"][:16], (132, 16)), rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_weights_of_extreme_size(estimator: str, factor: float) -> None:
    given = inputs((120,), 1, 16, 150, sharpness=0.1)
    given["alpha"][:] = 1.0
    given["value_weight"] *= np.float32(factor)
    given["value_bias"][:] = 0
    output, flops = run("mca", given, {"num_heads": 1, "estimator": estimator}, 1, WEIGHTS)
    given["value_weight"] /= np.float32(factor)
    plain, plain_flops = run("mca", given, {"num_heads": 1, "estimator": estimator}, 1, WEIGHTS)
    assert np.abs(output / np.float32(factor) - plain).max() < 1e-4 * np.abs(plain).max()
    assert abs(flops[0] - plain_flops[0]) < 0.05
    assert flops[0] < 1.0, "nothing was approximated"


def test_a_non_finite_weight_gives_non_finite_outputs_and_no_crash() -> None:
    given = inputs((120,), 2, 16, 150, sharpness=0.1)
    given["alpha"][:] = 1.0
    given["value_weight"][3, 4] = np.nan
    output, flops = run("mca", given, {"num_heads": 2}, 1, WEIGHTS)
    assert flops[0] < 1.0, "nothing was approximated"
    assert np.isnan(output[:, 4]).all()
    assert np.isfinite(output[:, 16:]).all()


def test_a_non_finite_row_makes_its_sequence_nan() -> None:
    for name in ("query", "key", "hidden"):
        given = inputs((30, 120), 2, 16, 150, sharpness=0.1)
        given["alpha"][:] = 1.0
        given[name][10, 3] = np.inf
        output, flops = run("mca", given, {"num_heads": 2}, 1, WEIGHTS)
        assert np.isnan(output[:30]).all()
        assert np.isfinite(output[30:]).all()
        assert flops[0] == 1.0
        assert flops[1] < 1.0, "nothing was approximated"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": [0.1, 0.2, 1.5]}, r"alpha\[2\] is 1.5, must be in \[0, 1\]"),
        ({"alpha": [-0.25, 0.2, 0.5]}, r"alpha\[0\] is -0.25, must be in \[0, 1\]"),
        ({"alpha": [0.1, np.nan, 0.5]}, r"alpha\[1\] is -?nan, must be in \[0, 1\]"),
        ({"alpha": [0.1, 0.2]}, "alpha has 2 values for 3 sequences"),
        ({"seed": [1, -1, 2]}, r"seed\[1\] is -1, must be in \[0, 9007199254740991\]"),
        ({"cu_seqlens": [0, 5, 3, 12]}, r"cu_seqlens\[2\] is 3, must not be below cu_seqlens\[1\] = 5"),
        ({"cu_seqlens": [0, 5, 9, 11]}, r"cu_seqlens\[3\] is 11, must be the number of packed rows, 12"),
        ({"hidden": np.zeros((11, 20))}, "hidden has size 11 on axis 0, must be 12"),
        ({"hidden": np.zeros((12, 0)), "value_weight": np.zeros((0, 32))}, "hidden has 0 columns"),
        ({"value_weight": np.zeros((19, 32))}, "value_weight has size 19 on axis 0, must be 20"),
        ({"value_weight": np.zeros((20, 48))}, "value_weight has size 48 on axis 1, must be 32"),
        ({"value_bias": np.zeros(31)}, "value_bias has size 31 on axis 0, must be 32"),
        ({"query": np.zeros((11, 32))}, "query has size 11 on axis 0, must be 12"),
        ({"query": np.zeros((12, 30))}, "query has size 30 on axis 1, must be 32"),
    ],
)
@pytest.mark.parametrize("constants", [(), WEIGHTS], ids=["fed", "constant"])
def test_refusals_name_what_is_wrong(change: dict[str, object], message: str, constants: tuple[str, ...]) -> None:
    given = inputs((5, 4, 3), 2, 16, 20)
    for name, value in change.items():
        given[name] = np.asarray(value).astype(given[name].dtype)
    with pytest.raises(InvalidArgument, match="McaAttention: " + message):
        run("mca", given, {"num_heads": 2}, 1, constants)


@pytest.mark.parametrize("head_dim", [7, 257])
def test_head_dims_out_of_range_are_refused(head_dim: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"McaAttention: key has head_dim {head_dim}, must be in \[8, 256\]"):
        run("mca", inputs((5,), 1, head_dim, 20), {"num_heads": 1}, 1, WEIGHTS)


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_every_instruction_set(isa: str) -> None:
    """The checks above once more where `ATTENUATOR_ISA` lowers the instruction set."""
    if os.environ.get("ATTENUATOR_ISA"):
        pytest.skip("the instruction set is chosen already")
    names = "odd_shapes or windows or first_row or alpha_zero or fed or zero_weights"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", str(Path(__file__)), "-k", names]
    finished = subprocess.run(
        command, env={**os.environ, "ATTENUATOR_ISA": isa}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout[-2000:]
