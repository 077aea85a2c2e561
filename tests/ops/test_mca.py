"""McaAttention against its NumPy reference: values, samples, counted multiply-adds, refusals."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import RAGGED, Case, make_inputs, run_case, variants
from harness import BY_NAME, AttributeValue, run
from mca_cases import ESTIMATORS, WEIGHTS, check, mca_inputs
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.softmax.reference import softmax_attention

APPROXIMATED = [case for case in variants(BY_NAME["mca"]) if case.attributes["queries"] == "all"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("heads", "head_dim", "channels"),
    [(1, 8, 200), (3, 12, 97), (2, 16, 64), (2, 31, 230), (2, 48, 96), (2, 64, 256), (1, 80, 257), (1, 256, 100)],
)
def test_odd_shapes_of_ragged_batches(estimator: str, heads: int, head_dim: int, channels: int) -> None:
    inputs = mca_inputs((70, 0, 1, 130, 5, 64, 65), heads, head_dim, channels)
    inputs["alpha"][[3, 5]] = 1.0
    flops = check(inputs, {"num_heads": heads, "estimator": estimator, "layer": 3})
    assert flops[5] < 1.0, "nothing was approximated without a probe"
    assert flops[3] < 1.0 or channels < 200, "nothing was approximated after a probe"


@pytest.mark.parametrize("case", APPROXIMATED, ids=str)
def test_the_batch_that_every_operator_is_tested_with_is_approximated(case: Case) -> None:
    """Otherwise the tests that all operators share would run exact attention only."""
    assert run_case(case, make_inputs(case, RAGGED))[1].min() < 1.0, "nothing was approximated"


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("window", [3, 16, 50, 200])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_windows(estimator: str, window: int, global_tokens: int) -> None:
    inputs = mca_inputs((120, 17, 0, 300, 4), 2, 24, 260, sharpness=0.1)
    inputs["alpha"][0] = 1.0
    attributes: dict[str, AttributeValue] = {"window": window, "global_tokens": global_tokens}
    flops = check(inputs, {"num_heads": 2, "estimator": estimator, **attributes})
    assert flops.min() < 1.0, "nothing was approximated"


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_first_row_alone_is_exact_and_counted(window: int, global_tokens: int, estimator: str) -> None:
    inputs = mca_inputs((40, 1, 0, 90, 5), 2, 24, 50, first=True)
    inputs["alpha"][3] = 0
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2,
        "queries": "first",
        "window": window,
        "global_tokens": global_tokens,
        "estimator": estimator,
    }
    flops = check(inputs, attributes)
    values = inputs["hidden"].astype(np.float64) @ inputs["value_weight"] + inputs["value_bias"]
    exact = softmax_attention(
        inputs["query"],
        inputs["key"],
        values,
        inputs["cu_seqlens"],
        num_heads=2,
        window=window,
        global_tokens=global_tokens,
        queries="first",
    )
    occupied = np.diff(inputs["cu_seqlens"]) > 0
    output = run("mca", inputs, attributes, 1, WEIGHTS)[0]
    assert np.abs(output - exact)[occupied].max() < 1e-4
    lengths = np.diff(inputs["cu_seqlens"])
    keys = np.minimum(lengths, window + 1) if window and not global_tokens else lengths
    assert flops[3] == 1.0, "alpha 0 projects every token"
    assert flops[1] == 1.0, "one token has nothing to mix"
    for b in (0, 4):  # (A X) W_v spends keys C H + C H D multiply-adds instead of n C H D
        assert flops[b] == pytest.approx(keys[b] / (lengths[b] * 24) + 1 / lengths[b])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (9, 0), (9, 1)])
def test_alpha_zero_is_exact_softmax_attention(estimator: str, window: int, global_tokens: int) -> None:
    inputs = mca_inputs((33, 0, 1, 200), 2, 40, 70)
    inputs["alpha"][:] = 0
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "window": window, "global_tokens": global_tokens}
    output, flops = run("mca", inputs, {**attributes, "estimator": estimator}, 1, WEIGHTS)
    value = (inputs["hidden"] @ inputs["value_weight"] + inputs["value_bias"]).astype(np.float32)
    plain = {name: inputs[name] for name in ("query", "key", "cu_seqlens")} | {"value": value}
    expected = run("softmax", plain, attributes)[0]
    assert np.abs(output - expected).max() < 1e-5 * np.abs(expected).max()
    assert (flops == 1.0).all()


def test_scale_attribute() -> None:
    inputs = mca_inputs((120, 20), 2, 16, 300, sharpness=0.1)
    inputs["alpha"][0] = 1.0
    assert check(inputs, {"num_heads": 2, "scale": 0.9}).min() < 1.0, "nothing was approximated"
    plain = run("mca", inputs, {"num_heads": 2}, 1, WEIGHTS)
    standard = run("mca", inputs, {"num_heads": 2, "scale": 0.25}, 1, WEIGHTS)
    assert all(np.array_equal(a, b) for a, b in zip(plain, standard, strict=True))


def test_long_sequences_compute_scores_twice_where_that_can_pay() -> None:
    """2 n <= C above 768 tokens, on the parallel path."""
    inputs = mca_inputs((1100,), 1, 8, 2304, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    attributes: dict[str, AttributeValue] = {"num_heads": 1}
    assert check(inputs, attributes)[0] < 0.9
    one, three = (run("mca", inputs, attributes, threads, WEIGHTS) for threads in (1, 3))
    assert all(np.array_equal(a, b) for a, b in zip(one, three, strict=True))


def test_long_sequences_stay_exact_where_it_cannot_pay() -> None:
    inputs = mca_inputs((769, 768), 1, 8, 600, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    flops = check(inputs, {"num_heads": 1})
    assert flops[0] == 1.0
    assert flops[1] < 0.9


def test_an_alpha_too_small_to_save_anything_is_exact_from_the_start() -> None:
    """r is 1 / alpha^2 or more in the mean, which here is just above C and well below it."""
    inputs = mca_inputs((120, 120), 1, 64, 400, sharpness=0.0)
    inputs["alpha"][:] = (0.0499, 0.12)
    flops = run("mca", inputs, {"num_heads": 1}, 1, WEIGHTS)[1]
    assert flops[0] == 1.0
    assert flops[1] < 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_weight_that_is_fed_gives_the_bits_of_a_constant_one(estimator: str) -> None:
    inputs = mca_inputs((100, 30), 2, 24, 80)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "estimator": estimator}
    constant = run("mca", inputs, attributes, 1, WEIGHTS)
    for constants in ((), ("value_weight",), ("value_bias",)):
        fed = run("mca", inputs, attributes, 1, constants)
        assert all(np.array_equal(a, b) for a, b in zip(constant, fed, strict=True))


@pytest.mark.parametrize(("estimator", "random"), [("sampled", True), ("deterministic", False), ("paper", True)])
def test_seed_and_layer_choose_the_samples(estimator: str, random: bool) -> None:
    inputs = mca_inputs((64, 64), 2, 32, 96)
    for name in ("query", "key", "hidden"):
        inputs[name][64:] = inputs[name][:64]
    inputs["alpha"][:] = 1.0
    inputs["seed"][:] = (5, 6)
    results = [
        run("mca", inputs, {"num_heads": 2, "estimator": estimator, "layer": layer}, 1, WEIGHTS)[0] for layer in (0, 1)
    ]
    assert np.array_equal(results[0][:64], results[0][64:]) != random
    assert np.array_equal(results[0], results[1]) != random
    inputs["seed"][:] = 5
    same = run("mca", inputs, {"num_heads": 2, "estimator": estimator}, 1, WEIGHTS)[0]
    assert np.array_equal(same[:64], same[64:])
    assert np.array_equal(same[:64], results[0][:64])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_zero_weights_are_exact(estimator: str) -> None:
    inputs = mca_inputs((120, 12), 2, 16, 150, sharpness=0.1)
    inputs["alpha"][0] = 1.0
    inputs["value_weight"][:, :16] = 0  # a head without a distribution to sample from
    inputs["value_weight"][5:50, 16:] = 0  # columns that are never needed
    flops = check(inputs, {"num_heads": 2, "estimator": estimator})
    assert flops.min() < 1.0, "nothing was approximated"
    output = run("mca", inputs, {"num_heads": 2, "estimator": estimator}, 1, WEIGHTS)[0]
    np.testing.assert_allclose(output[:, :16], np.broadcast_to(inputs["value_bias"][:16], (132, 16)), rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_weights_of_extreme_size(estimator: str, factor: float) -> None:
    inputs = mca_inputs((120,), 1, 16, 150, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    inputs["value_weight"] *= np.float32(factor)
    inputs["value_bias"][:] = 0
    output, flops = run("mca", inputs, {"num_heads": 1, "estimator": estimator}, 1, WEIGHTS)
    inputs["value_weight"] /= np.float32(factor)
    plain, plain_flops = run("mca", inputs, {"num_heads": 1, "estimator": estimator}, 1, WEIGHTS)
    assert np.abs(output / np.float32(factor) - plain).max() < 1e-4 * np.abs(plain).max()
    assert abs(flops[0] - plain_flops[0]) < 0.05
    assert flops[0] < 1.0, "nothing was approximated"


def test_a_non_finite_weight_gives_non_finite_outputs_and_no_crash() -> None:
    inputs = mca_inputs((120,), 2, 16, 150, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    inputs["value_weight"][3, 4] = np.nan
    output, flops = run("mca", inputs, {"num_heads": 2}, 1, WEIGHTS)
    assert flops[0] < 1.0, "nothing was approximated"
    assert np.isnan(output[:, 4]).all()
    assert np.isfinite(output[:, 16:]).all()


def test_a_non_finite_row_makes_its_sequence_nan() -> None:
    for name in ("query", "key", "hidden"):
        inputs = mca_inputs((30, 120), 2, 16, 150, sharpness=0.1)
        inputs["alpha"][:] = 1.0
        inputs[name][10, 3] = np.inf
        output, flops = run("mca", inputs, {"num_heads": 2}, 1, WEIGHTS)
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
        ({"alpha": [0.1, 0.2]}, "alpha has 2 values for 3 sequences, must have one value per sequence"),
        ({"seed": [1, -1, 2]}, r"seed\[1\] is -1, must be in \[0, 9007199254740991\]"),
        ({"cu_seqlens": [0, 5, 3, 12]}, r"cu_seqlens\[2\] is 3, must not be below cu_seqlens\[1\] = 5"),
        ({"cu_seqlens": [0, 5, 9, 11]}, r"cu_seqlens\[3\] is 11, must be 12, the number of packed rows"),
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
    inputs = mca_inputs((5, 4, 3), 2, 16, 20)
    for name, value in change.items():
        inputs[name] = np.asarray(value).astype(inputs[name].dtype)
    with pytest.raises(InvalidArgument, match="McaAttention: " + message):
        run("mca", inputs, {"num_heads": 2}, 1, constants)


@pytest.mark.parametrize("head_dim", [7, 257])
def test_head_dims_out_of_range_are_refused(head_dim: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"McaAttention: key has head_dim {head_dim}, must be in \[8, 256\]"):
        run("mca", mca_inputs((5,), 1, head_dim, 20), {"num_heads": 1}, 1, WEIGHTS)


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
