"""PerformerAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
import torch
from feature_cases import LENGTHS, at, feature_inputs, one_query
from harness import Array, in_process, run
from scipy import stats

from attenuator.ops.eager_features import orthogonal_directions as eager_directions
from attenuator.ops.performer.eager import softmax_estimate as eager_estimate
from attenuator.ops.performer.reference import performer_attention, softmax_estimate, softmax_exact
from attenuator.ops.reference_features import orthogonal_directions

ALPHA = 1e-6  # of each test, two-sided, Bonferroni over its comparisons
SHAPES = [(1, 8, 8), (3, 9, 15), (2, 16, 16), (4, 31, 33), (12, 64, 64), (2, 100, 24), (1, 255, 127)]


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("heads", "head_dim", "value_dim"), SHAPES)
def test_equals_the_reference(heads: int, head_dim: int, value_dim: int, queries: str) -> None:
    inputs = feature_inputs(LENGTHS, heads, head_dim, value_dim, queries == "first")
    attributes = {"num_heads": heads, "queries": queries, "layer": 3}
    [output] = run("performer", inputs, attributes, threads=2)
    np.testing.assert_allclose(output, performer_attention(**inputs, **attributes), atol=2e-5)


@pytest.mark.parametrize("scale", [-0.3, 1e-3, 1.5])
def test_any_scale(scale: float) -> None:
    inputs = feature_inputs((40, 3, 7), 2, 16, 16)
    [output] = run("performer", inputs, {"num_heads": 2, "scale": scale})
    np.testing.assert_allclose(output, performer_attention(**inputs, num_heads=2, scale=scale), atol=2e-5)


@pytest.mark.parametrize("queries", ["all", "first"])
def test_without_features_it_is_softmax_attention_bit_for_bit(queries: str) -> None:
    inputs = at(feature_inputs((*LENGTHS, 700), 3, 40, 24, queries == "first"), num_features=0)
    attributes = {"num_heads": 3, "queries": queries, "scale": 0.2}
    softmax = {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}
    [expected] = run("softmax", softmax, attributes)
    [output] = run("performer", inputs, attributes, threads=2)
    assert output.tobytes() == expected.tobytes()


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("length", "num_features"), [(1023, 40), (1025, 16), (2500, 33), (2100, 700)])
def test_chunks_of_a_long_sequence_add_up(length: int, num_features: int, queries: str) -> None:
    inputs = feature_inputs((7, length, 5), 2, 24, 40, queries == "first")
    inputs["key"] *= np.linspace(0.1, 3, len(inputs["key"]), dtype=np.float32)[:, None]  # the largest exponents rise
    inputs = at(inputs, num_features=num_features)
    attributes = {"num_heads": 2, "queries": queries}
    outputs = [run("performer", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    np.testing.assert_allclose(outputs[0], performer_attention(**inputs, **attributes), atol=5e-5)


@pytest.mark.parametrize("size", [1e-30, 0.01, 5.0, 30.0])
def test_rows_of_any_length(size: float) -> None:
    """Exponents of hundreds; their rounding is an error of 6e-8 of their size."""
    inputs = feature_inputs((40, 3, 130), 2, 16, 16, size=size)
    [output] = run("performer", inputs, {"num_heads": 2})
    error = 2e-5 * max(1.0, size**2 / 4)
    np.testing.assert_allclose(output, performer_attention(**inputs, num_heads=2), atol=error)


@pytest.mark.parametrize("size", [1e4, 1e18, 1e30, 3e38])
def test_finite_rows_give_means_of_values_whatever_their_size(size: float) -> None:
    inputs = feature_inputs((40, 3, 130), 2, 16, 16)
    for name in ("query", "key"):
        inputs[name] = np.clip(inputs[name], -1, 1) * np.float32(size)
    [output] = run("performer", inputs, {"num_heads": 2})
    assert np.isfinite(output).all()
    assert np.abs(output).max() <= np.abs(inputs["value"]).max() * 1.0001


def test_one_token_gets_its_own_value() -> None:
    inputs = feature_inputs((1,), 2, 16, 16, size=10.0)
    [output] = run("performer", inputs, {"num_heads": 2})
    np.testing.assert_allclose(output, inputs["value"], rtol=1e-5)


def test_features_far_apart_still_weigh() -> None:
    """A query's largest feature is nowhere near the keys' largest, 120 powers of e below it: no sum is 0."""
    inputs = feature_inputs((30,), 1, 8, 8)
    inputs["key"][:] = np.float32(20.0) * np.sign(inputs["key"][:1])
    inputs["query"][:] = -inputs["key"]
    inputs = at(inputs, num_features=64)
    [output] = run("performer", inputs, {"num_heads": 1})
    np.testing.assert_allclose(output, performer_attention(**inputs, num_heads=1), atol=1e-3)
    assert np.abs(output).min() > 0


def test_avx2_gives_the_bits_of_avx512() -> None:
    script = (
        "import sys, feature_cases, harness\n"
        "inputs = feature_cases.feature_inputs((5, 300, 70, 1100), 2, 40, 24)\n"
        "inputs = feature_cases.at(inputs, num_features=100)\n"
        "sys.stdout.write(harness.run(sys.argv[1], inputs, {'num_heads': 2})[0].tobytes().hex())\n"
    )
    for key in ("performer", "rfa"):
        results = [in_process(script, key, ATTENUATOR_ISA=isa) for isa in ("avx2", "avx512")]
        assert not any(result.returncode for result in results), results[0].stderr + results[1].stderr
        assert len(results[0].stdout) > 1000
        assert results[0].stdout == results[1].stdout


def query_and_keys(head_dim: int, size: float, keys: int = 12) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(head_dim)
    query, key = size * rng.standard_normal((1, head_dim)), size * rng.standard_normal((keys, head_dim))
    return query.astype(np.float32), key.astype(np.float32), rng.standard_normal((keys, 8)).astype(np.float32)


def kernels(query: Array, key: Array, drawn: Array) -> tuple[Array, Array]:
    """Each key's estimate of exp(q.k) by these directions, and what it is."""
    q, k = (rows.astype(np.float64) for rows in (query, key))
    of_query = np.exp(drawn @ q[0] - q[0] @ q[0] / 2)
    return (np.exp(k @ drawn.T - (k * k).sum(axis=1)[:, None] / 2) @ of_query) / len(drawn), np.exp(k @ q[0])


@pytest.mark.parametrize(("head_dim", "num_features"), [(8, 8), (8, 20), (16, 5), (32, 48)])
def test_numerators_and_denominator_are_unbiased_and_orthogonality_lowers_their_variance(
    head_dim: int, num_features: int
) -> None:
    """E = exp(q.k); the variance of independent directions is exp(|q + k|^2) exp(2 q.k) (1 - exp(-|q + k|^2)) / m,
    and orthogonal ones of positive features stay below it (Choromanski et al., theorem 2)."""
    query, key, _ = query_and_keys(head_dim, 0.5 / head_dim**0.25)
    seeds = 600
    drawn = [orthogonal_directions(seed, 1, 0, num_features, head_dim) for seed in range(seeds)]
    observed, truth = zip(*(kernels(query, key, each) for each in drawn), strict=True)
    estimates = np.array(observed)
    error = estimates.std(axis=0, ddof=1) / np.sqrt(seeds)
    limit = stats.norm.isf(ALPHA / 2 / len(key))
    assert (np.abs(estimates.mean(axis=0) - truth[0]) / error).max() < limit
    total = estimates.sum(axis=1)
    assert abs(total.mean() - truth[0].sum()) / (total.std(ddof=1) / np.sqrt(seeds)) < limit
    both = ((query.astype(np.float64) + key) ** 2).sum(axis=1)
    independent = np.exp(both) * truth[0] ** 2 * (1 - np.exp(-both)) / num_features
    # Of a sample variance of skewed estimates, whose fourth moment is taken from the sample.
    centred = estimates - estimates.mean(axis=0)
    spread = np.sqrt((centred**4).mean(axis=0) - (centred**2).mean(axis=0) ** 2) / np.sqrt(seeds)
    assert ((estimates.var(axis=0, ddof=1) - independent) / spread).max() < limit


def test_each_direction_is_standard_normal_and_blocks_are_orthogonal() -> None:
    head_dim, count = 12, 30
    drawn = np.array([orthogonal_directions(seed, 0, 2, count, head_dim) for seed in range(400)])
    for first in range(0, count, head_dim):
        block = drawn[:, first : first + head_dim]
        products = block @ block.transpose(0, 2, 1)
        products[:, np.arange(len(block[0])), np.arange(len(block[0]))] = 0
        assert np.abs(products).max() < 1e-9
    # The Kolmogorov-Smirnov statistic of each place in the sequence of directions; 400 * 12 coordinates of one are
    # independent between seeds and all but independent within (a chi-distributed length times a point on the sphere).
    p_values = [stats.kstest(drawn[:, i].reshape(-1), "norm").pvalue for i in range(count)]
    assert min(p_values) > ALPHA / count
    lengths = np.linalg.norm(drawn, axis=2).reshape(-1)
    assert stats.kstest(lengths, stats.chi(head_dim).cdf).pvalue > ALPHA


def test_the_first_directions_of_more_are_those_of_fewer() -> None:
    many = orthogonal_directions(2**50, 7, 3, 40, 9)
    for count in (1, 8, 9, 10, 27, 31):
        np.testing.assert_allclose(orthogonal_directions(2**50, 7, 3, count, 9), many[:count], atol=1e-12)


def test_knobs_and_seeds_mix_in_a_batch_whatever_was_drawn_before() -> None:
    """The same bits for a sequence alone, in a batch, and after more or fewer features of its seed."""
    inputs = feature_inputs((20, 20, 20, 20), 2, 24, 16)
    for name in ("query", "key", "value"):
        inputs[name] = np.tile(inputs[name][:20], (4, 1))
    inputs |= {"num_features": np.array([30, 400, 30, 30], np.int32), "seed": np.array([9, 9, 10, 9])}
    [output] = run("performer", inputs, {"num_heads": 2})
    rows = output.reshape(4, -1)
    assert rows[0].tobytes() == rows[3].tobytes()
    for other in (1, 2):
        assert not np.allclose(rows[0], rows[other])
    alone = {name: value[:20] for name, value in inputs.items() if name in ("query", "key", "value")}
    alone |= {"cu_seqlens": inputs["cu_seqlens"][:2], "num_features": inputs["num_features"][:1], "seed": np.array([9])}
    assert run("performer", alone, {"num_heads": 2})[0].tobytes() == rows[0].tobytes()


def test_error_falls_with_the_number_of_features() -> None:
    """Root mean square error of outputs over seeds: as 1/sqrt(m), where estimates are not dominated by few features."""
    query, key, value = query_and_keys(16, 0.3, keys=40)
    exact = softmax_exact(query / 2.0, key / 2.0, value.astype(np.float64))
    errors = []
    for num_features in (16, 64, 256, 1024):
        inputs = one_query(query, key, value, num_features, 300)
        [output] = run("performer", inputs, {"num_heads": 1, "queries": "first"})
        errors.append(float(np.sqrt(((output - exact) ** 2).mean())))
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    assert ((ratios > 1.7) & (ratios < 2.4)).all(), ratios
    assert errors[-1] < 0.005


def test_eager_is_the_reference() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((3, 1, 2, 11, 8))  # query, key, value: batch, heads, tokens, channels
    drawn = eager_directions(2, 20, 8, torch.Generator().manual_seed(1)).double()
    is_token = torch.ones(1, 11, dtype=torch.bool)
    is_token[0, 9:] = False
    output = eager_estimate(*(torch.tensor(part) for part in rows), is_token, drawn).numpy()
    for head in range(2):
        query, key, value = (part[0, head, :9] for part in rows)
        expected = softmax_estimate(query, key, value, drawn[head].numpy())
        np.testing.assert_allclose(output[0, head, :9], expected, atol=1e-12)
    block = drawn[0, :8] / drawn[0, :8].norm(dim=1, keepdim=True)
    np.testing.assert_allclose(block @ block.T, np.eye(8), atol=1e-5)


def test_eager_gradients_are_the_derivatives() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randn(1, 1, 5, 4, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    drawn = torch.randn(1, 6, 4, generator=generator, dtype=torch.float64)
    is_token = torch.tensor([[True, True, True, True, False]])
    assert torch.autograd.gradcheck(lambda *parts: eager_estimate(*parts, is_token, drawn)[:, :, :4], rows)
