"""RfaAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import math

import numpy as np
import pytest
import torch
from feature_cases import LENGTHS, at, feature_inputs, one_query
from harness import Array, run
from scipy import stats

from attenuator.ops.reference_features import RFA_STREAM, directions
from attenuator.ops.rfa.eager import kernel_estimate as eager_estimate
from attenuator.ops.rfa.eager import kernel_exact as eager_exact
from attenuator.ops.rfa.reference import (
    features,
    kernel_estimate,
    kernel_exact,
    least_denominator,
    rfa_attention,
    unit,
)

ALPHA = 1e-6  # of each test, two-sided, Bonferroni over its comparisons
SHAPES = [(1, 8, 8), (3, 9, 15), (2, 16, 16), (4, 31, 33), (12, 64, 64), (2, 100, 24), (1, 255, 127)]


def assert_close(output: Array, expected: Array, error: float = 2e-6) -> None:
    """A quotient by a small denominator is large, and its error as its square."""
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.isfinite(output).all()
    assert (np.abs(output - expected) / (1 + largest**2)).max() < error


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("heads", "head_dim", "value_dim"), SHAPES)
def test_equals_the_reference(heads: int, head_dim: int, value_dim: int, queries: str) -> None:
    inputs = feature_inputs(LENGTHS, heads, head_dim, value_dim, queries == "first")
    attributes = {"num_heads": heads, "queries": queries, "layer": 3}
    [output] = run("rfa", inputs, attributes, threads=2)
    assert_close(output, rfa_attention(**inputs, **attributes))


@pytest.mark.parametrize(("sigma", "error"), [(0.05, 2e-5), (0.4, 2e-6), (3.0, 2e-6), (1000.0, 2e-6)])
def test_any_sigma_and_trained_factors(sigma: float, error: float) -> None:
    """The angles of narrow kernels are large, and rounded by 6e-8 of their size."""
    inputs = feature_inputs((40, 3, 7), 3, 16, 16)
    inputs["inverse_sigma"] = np.array([1.0, -0.5, 1.7], np.float32)
    attributes = {"num_heads": 3, "sigma": sigma}
    for num_features in (0, 64):
        chosen = at(inputs, num_features=num_features)
        [output] = run("rfa", chosen, attributes)
        assert_close(output, rfa_attention(**chosen, **attributes), error)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("length", "num_features"), [(1023, 40), (1025, 16), (2500, 33), (2100, 400)])
def test_chunks_of_a_long_sequence_add_up(length: int, num_features: int, queries: str) -> None:
    inputs = at(feature_inputs((7, length, 5), 2, 24, 40, queries == "first"), num_features=num_features)
    attributes = {"num_heads": 2, "queries": queries}
    outputs = [run("rfa", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    assert_close(outputs[0], rfa_attention(**inputs, **attributes))


@pytest.mark.parametrize("num_features", [0, 64])
def test_rows_count_by_their_direction_down_to_the_floor_of_their_length(num_features: int) -> None:
    lengths, rows = (40, 3, 130), {}
    for size in (1e-36, 1e-13, 1e-11, 1.0, 1e6, 3e37):
        inputs = at(feature_inputs(lengths, 2, 16, 16, size=size), num_features=num_features)
        [rows[size]] = run("rfa", inputs, {"num_heads": 2})
        assert_close(rows[size], rfa_attention(**inputs, num_heads=2))
    for size in (1e-11, 1e6, 3e37):
        assert_close(rows[size], rows[1.0], 1e-5)
    means = [
        np.broadcast_to(part.mean(axis=0), part.shape) for part in np.split(inputs["value"], np.cumsum(lengths)[:-1])
    ]
    np.testing.assert_allclose(rows[1e-36], np.concatenate(means), atol=1e-6)


def test_zero_rows_attend_to_all_alike() -> None:
    inputs = at(feature_inputs((9,), 1, 8, 8), num_features=0)
    inputs["query"][:] = 0
    [output] = run("rfa", inputs, {"num_heads": 1})
    np.testing.assert_allclose(output, np.broadcast_to(inputs["value"].mean(axis=0), output.shape), atol=1e-6)


def test_a_key_of_zeros_weighs_more_by_features_than_exactly() -> None:
    """exp(-s^2 |q|^2 / 2), where a key at a right angle weighs exp(-s^2): the ratio is exp(s^2 / 2)."""
    query, key, _ = query_and_keys(16, keys=2)
    key[0] = 0
    key[1] -= query[0] * (query[0] @ key[1]) / (query[0] @ query[0])
    weights = np.zeros((2, 8), np.float32)
    weights[0, 0] = weights[1, 1] = 1
    for num_features, ratio in ((0, 1.0), (1024, math.exp(0.5))):
        inputs = one_query(query, key, weights, num_features, 100)
        [output] = run("rfa", inputs, {"num_heads": 1, "queries": "first"})
        mean = output.mean(axis=0)
        assert mean[0] / mean[1] == pytest.approx(ratio, rel=0.05)


def test_trained_factors_of_any_size_give_numbers() -> None:
    inputs = at(feature_inputs((9, 4), 3, 8, 8), num_features=40)
    inputs["inverse_sigma"] = np.array([0.0, 3e38, -np.inf], np.float32)
    [output] = run("rfa", inputs, {"num_heads": 3})
    assert np.isfinite(output).all()
    means = [inputs["value"][:9, :8].mean(axis=0), inputs["value"][9:, :8].mean(axis=0)]
    np.testing.assert_allclose(output[[0, 9], :8], means, atol=1e-6)


def query_and_keys(head_dim: int, keys: int = 12) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(head_dim)
    rows = [rng.standard_normal((count, head_dim)).astype(np.float32) for count in (1, keys)]
    return rows[0], rows[1], rng.standard_normal((keys, 8)).astype(np.float32)


@pytest.mark.parametrize(("head_dim", "num_features", "inverse_sigma"), [(8, 1, 1.0), (16, 20, 0.5), (32, 16, 2.0)])
def test_numerators_and_denominator_are_unbiased_with_the_variance_of_the_law(
    head_dim: int, num_features: int, inverse_sigma: float
) -> None:
    """E = exp(-s^2 |q - k|^2 / 2) =: K, and of cos(w.(q - k)) the variance is (1 - K^2)^2 / 2 (Rahimi and Recht)."""
    query, key, _ = query_and_keys(head_dim)
    q, k = unit(query), unit(key)
    seeds = 1000
    observed = []
    for seed in range(seeds):
        drawn = inverse_sigma * directions(seed, 1, 0, RFA_STREAM, num_features, head_dim)
        observed.append((features(q, drawn) @ features(k, drawn).T)[0])
    estimates = np.array(observed)
    mean = np.exp(-(inverse_sigma**2) * ((q - k) ** 2).sum(axis=1) / 2)
    variance = (1 - mean**2) ** 2 / 2 / num_features
    limit = stats.norm.isf(ALPHA / 2 / (2 * len(key) + 1))
    assert (np.abs(estimates.mean(axis=0) - mean) / np.sqrt(variance / seeds)).max() < limit
    centred = estimates - mean
    spread = np.sqrt(((centred**4).mean(axis=0) - variance**2) / seeds)
    assert (np.abs((centred**2).mean(axis=0) - variance) / spread).max() < limit
    total = estimates.sum(axis=1)
    assert abs(total.mean() - mean.sum()) / (total.std(ddof=1) / np.sqrt(seeds)) < limit


def test_directions_are_standard_normal() -> None:
    drawn = np.array([directions(seed, 5, 1, RFA_STREAM, 20, 24) for seed in range(200)])
    assert stats.kstest(drawn.reshape(-1), "norm").pvalue > ALPHA
    correlation = np.corrcoef(drawn.reshape(200, -1)[:, :60].T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < stats.norm.isf(ALPHA / 2 / 1770) / np.sqrt(200)


def test_error_falls_with_the_number_of_features() -> None:
    """Root mean square error of outputs over seeds: as 1/sqrt(m)."""
    query, key, value = query_and_keys(16, keys=40)
    exact = kernel_exact(unit(query), unit(key), value.astype(np.float64), 1.0)
    errors = []
    for num_features in (16, 64, 256, 1024):
        inputs = one_query(query, key, value, num_features, 300)
        [output] = run("rfa", inputs, {"num_heads": 1, "queries": "first"})
        errors.append(float(np.sqrt(((output - exact) ** 2).mean())))
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    assert ((ratios > 1.7) & (ratios < 2.4)).all(), ratios
    assert errors[-1] < 0.02


def test_denominators_that_are_negative_or_small_count_as_the_reference_says() -> None:
    """One direction and a narrow kernel: of most rows the sum of cosines is small or negative."""
    inputs = at(feature_inputs((6, 30), 2, 8, 8), num_features=1)
    attributes = {"num_heads": 2, "sigma": 0.3}
    [output] = run("rfa", inputs, attributes)
    [drawn] = 1 / np.float32(0.3) * directions(int(inputs["seed"][0]), 0, 0, RFA_STREAM, 1, 8)[None]
    sums = np.cos((unit(inputs["query"][:6, :8]) @ drawn.T) - (unit(inputs["key"][:6, :8]) @ drawn.T).T).sum(axis=1)
    assert (sums < 0).any()
    assert_close(output, rfa_attention(**inputs, **attributes))


def test_eager_is_the_reference() -> None:
    rng = np.random.default_rng(2)
    rows = [unit(part.reshape(-1, 8)).reshape(1, 2, 11, 8) for part in rng.standard_normal((3, 2, 11, 8))]
    drawn = rng.standard_normal((2, 20, 8))
    inverse_sigma = np.array([0.7, 1.9])
    is_token = torch.ones(1, 11, dtype=torch.bool)
    is_token[0, 9:] = False
    tensors = [*(torch.tensor(part) for part in rows), is_token, torch.tensor(inverse_sigma)]
    estimate, exact = eager_estimate(*tensors, torch.tensor(drawn)).numpy(), eager_exact(*tensors).numpy()
    for head, inverse in enumerate(inverse_sigma):
        parts = [part[0, head, :9] for part in rows]
        least = least_denominator(9, inverse)
        expected = kernel_estimate(*parts, inverse * drawn[head], least)
        np.testing.assert_allclose(estimate[0, head, :9], expected, atol=1e-12)
        np.testing.assert_allclose(exact[0, head, :9], kernel_exact(*parts, inverse), atol=1e-12)


def test_eager_gradients_are_the_derivatives() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = [0.5 * torch.randn(1, 1, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    rows = [part.requires_grad_() for part in rows]
    inverse_sigma = torch.tensor([0.8], dtype=torch.float64, requires_grad=True)
    # Of so many directions no denominator is cut.
    drawn = torch.randn(1, 300, 4, generator=generator, dtype=torch.float64)
    is_token = torch.tensor([[True, True, True, True, False]])
    inputs = (*rows, inverse_sigma)
    assert torch.autograd.gradcheck(lambda q, k, v, s: eager_estimate(q, k, v, is_token, s, drawn)[:, :, :4], inputs)
    assert torch.autograd.gradcheck(lambda q, k, v, s: eager_exact(q, k, v, is_token, s)[:, :, :4], inputs)
