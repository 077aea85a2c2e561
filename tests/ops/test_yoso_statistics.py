"""What YosoAttention's randomness must obey, with stated confidence. Seeds are fixed: the tests are deterministic.

Every bound is two-sided at a probability of 1e-6 for the whole test (Bonferroni over its comparisons) under the law it
states, unless it says otherwise.
"""

import numpy as np
import pytest
from harness import Array, offsets, run
from scipy import stats

from attenuator.ops.yoso.reference import (
    Hash,
    codes,
    collision_probability,
    gaussian_planes,
    paper_hadamard_codes,
    quantise,
    unit,
)

HASHES: tuple[Hash, ...] = ("gaussian", "hadamard")
ALPHA = 1e-6


def pairs(head_dim: int, keys: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """One query and keys at angles from 0.1 to 3 rad to it, `[1, head_dim]` and `[keys, head_dim]`."""
    query = unit(rng.standard_normal((1, head_dim)))
    other = rng.standard_normal((keys, head_dim))
    other = unit(other - (other @ query.T) * query)
    angle = np.linspace(0.1, 3.0, keys)[:, None]
    key = (np.cos(angle) * query + np.sin(angle) * other) * rng.uniform(0.1, 10, (keys, 1))
    return query.astype(np.float32), key.astype(np.float32)


def estimates(
    query: Array, key: Array, num_hashes: int, seeds: int, hash_bits: int, hash: Hash, norm_lift: float = 0.0
) -> Array:
    """The estimated collision probabilities, `[seeds, keys]`, from one run with a sequence for each seed."""
    length = len(key)
    inputs = {
        "query": np.repeat(query, seeds, axis=0),
        "key": np.tile(key, (seeds, 1)),
        "value": np.tile(np.eye(length, dtype=np.float32), (seeds, 1)),
        "cu_seqlens": offsets([length] * seeds),
        "num_hashes": np.full(seeds, num_hashes, np.int32),
        "seed": np.arange(seeds) * 7919 + 2**40,
    }
    attributes = {
        "num_heads": 1, "hash_bits": hash_bits, "hash": hash, "normalize": 0, "norm_lift": norm_lift,
        "queries": "first",
    }  # fmt: skip
    return run("yoso", inputs, attributes)[0].astype(np.float64)


LAWS = [(64, 8), (64, 9), (8, 3), (20, 5), (100, 6), (32, 12)]


@pytest.mark.parametrize(("head_dim", "hash_bits"), LAWS)
@pytest.mark.parametrize("hash", HASHES)
def test_mean_over_seeds_is_the_expectation(hash: Hash, head_dim: int, hash_bits: int) -> None:
    query, key = pairs(head_dim, 40, np.random.default_rng(head_dim))
    num_hashes, seeds = 32, 400
    expected = collision_probability(query, key, hash_bits)[0]
    observed = estimates(query, key, num_hashes, seeds, hash_bits, hash)
    known = expected * num_hashes * seeds > 30  # where the mean is close to normal
    assert known.sum() >= 10
    # The rounding of rows to int8 moves an angle by about 1e-3 rad (README), which counts as bias here.
    slope = hash_bits / np.pi * expected ** (1 - 1 / hash_bits)
    error = np.sqrt(expected * (1 - expected) / (num_hashes * seeds)) + 2e-3 * slope
    assert (np.abs(observed.mean(axis=0) - expected) / error)[known].max() < stats.norm.isf(ALPHA / 2 / known.sum())


@pytest.mark.parametrize(("head_dim", "hash_bits"), LAWS)
@pytest.mark.parametrize("num_hashes", [1, 16])
@pytest.mark.parametrize("hash", HASHES)
def test_variance_over_seeds(hash: Hash, num_hashes: int, head_dim: int, hash_bits: int) -> None:
    """E (1 - E) / m for independent planes, and for one hash of any kind.

    Hashes of one Hadamard block are coordinates of a rotation, so their sign agreements are slightly negatively
    correlated: with several hashes the variance lies below, not above; at least half of it remains for m <= d / 2.
    """
    query, key = pairs(head_dim, 40, np.random.default_rng(head_dim + 1))
    seeds = 1500
    expected = collision_probability(query, key, hash_bits)[0]
    observed = estimates(query, key, num_hashes, seeds, hash_bits, hash)
    law = expected * (1 - expected) / num_hashes
    # Variance of a sample variance, from the fourth central moment of a binomial share.
    fourth = (law**2) * (3 - 6 / num_hashes) + law / num_hashes**2
    error = np.sqrt((fourth - law**2 * (seeds - 3) / (seeds - 1)) / seeds) + 0.01 * law
    known = expected * (1 - expected) * num_hashes * seeds > 60
    assert known.sum() >= 8
    z = ((observed.var(axis=0, ddof=1) - law) / error)[known]
    limit = stats.norm.isf(ALPHA / 2 / known.sum())
    assert z.max() < limit
    if hash == "gaussian" or num_hashes == 1:
        assert z.min() > -limit
    elif head_dim >= 2 * num_hashes:
        assert ((observed.var(axis=0, ddof=1) - 0.5 * law) / error)[known].min() > -limit


@pytest.mark.parametrize("head_dim", [8, 32, 64])
@pytest.mark.parametrize("hash", HASHES)
def test_rows_of_few_values_keep_the_law(hash: Hash, head_dim: int) -> None:
    """One-hot rows meet Hadamard coordinates of exactly 0 (0.3 % at d = 32), which must not favour agreement."""
    basis = np.eye(head_dim, dtype=np.float32)
    key = np.concatenate([basis[:8], -basis[:1]])
    observed = estimates(basis[:1], key, 256, 1000, 1, hash)
    mean, error = observed.mean(axis=0), observed.std(axis=0, ddof=1) / np.sqrt(len(observed))
    assert mean[0] == 1
    assert abs(mean[1:8].mean() - 0.5) < stats.norm.isf(ALPHA / 2) * np.sqrt((error[1:8] ** 2).mean() / 7) + 1e-3
    assert mean[8] < 0.005


@pytest.mark.parametrize("nonzeros", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [8, 32, 64])
@pytest.mark.parametrize("hash", HASHES)
def test_rows_of_few_nonzeros_keep_the_law(hash: Hash, head_dim: int, nonzeros: int) -> None:
    """Query and keys share their nonzeros, the hardest case: E at tau = 8 within 6 % of a pair, 2.5 % rms over pairs.

    Beyond the error of the means, at ALPHA. Three Walsh-Hadamard rounds without an uneven one were off by up to 240 %
    of E, and by 52 %, 28 % and 12 % rms at two nonzeros of head_dim 8, 32 and 64.
    """
    rng = np.random.default_rng(100 * head_dim + nonzeros)
    support = rng.permutation(head_dim)[:nonzeros]
    query, key = np.zeros((1, head_dim), np.float32), np.zeros((200, head_dim), np.float32)
    query[:, support], key[:, support] = rng.standard_normal((1, nonzeros)), rng.standard_normal((200, nonzeros))
    # After rounding to int8, whose error is another matter (README).
    query, key = (quantise(rows).astype(np.float32) for rows in (query, key))
    expected = collision_probability(query, key, 8)[0]
    key, expected = key[expected > 0.1], expected[expected > 0.1]
    observed = estimates(query, key, 512, 200, 8, hash)
    deviation = observed.mean(axis=0) / expected - 1
    error = observed.std(axis=0, ddof=1) / np.sqrt(len(observed)) / expected
    assert len(expected) >= 10
    assert np.abs(deviation).max() < 0.06 + stats.norm.isf(ALPHA / 2 / len(expected)) * error.max()
    # Pairs of a seed share planes, so that their means need not be independent: no gain from their number is assumed.
    assert np.sqrt((deviation**2).mean()) < 0.025 + stats.norm.isf(ALPHA) * np.sqrt((error**2).mean())


def test_the_papers_layout_is_biased_and_ours_is_not() -> None:
    """Neighbouring coordinates of one block are orthogonal: MATH gives 0.82 of the probability at cosine 0, d = 64."""
    rng = np.random.default_rng(3)
    rows = unit(rng.standard_normal((2, 64)))
    rows[1] = unit(rows[1:] - (rows[1] @ rows[0]) * rows[:1])[0]
    rows = rows.astype(np.float32)
    num_hashes, seeds = 64, 500
    ratio = {}
    for name in ("paper", "interleaved"):
        collided = 0
        for seed in range(seeds):
            row_codes = (
                paper_hadamard_codes(rows, seed, num_hashes, 8)
                if name == "paper"
                else codes(rows, seed, 0, 0, num_hashes, 8, "hadamard")
            )
            collided += int((row_codes[0] == row_codes[1]).sum())
        ratio[name] = collided / (num_hashes * seeds) * 2**8
    error = np.sqrt(2**8 / (num_hashes * seeds))
    assert abs(ratio["interleaved"] - 1) < 5 * error
    assert ratio["paper"] < 0.9
    assert abs(ratio["paper"] - 0.82) < 5 * error


def clustered(length: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Queries and keys around common topics, values with a common part: what attention in a text looks like."""
    common, topics = unit(rng.standard_normal((1, 64))), unit(rng.standard_normal((length // 12, 64)))
    topic = rng.integers(0, len(topics), length)
    query, key = (0.4 * common + 0.75 * topics[topic] + 0.5 * unit(rng.standard_normal((length, 64))) for _ in range(2))
    value = rng.standard_normal((length, 64)) + 0.5 * rng.standard_normal((1, 64))
    return query.astype(np.float32), key.astype(np.float32), value.astype(np.float32)


@pytest.mark.parametrize("length", [96, 768], ids=["counts", "tables"])
@pytest.mark.parametrize("hash", HASHES)
def test_angle_to_the_expectation_follows_the_closed_form(hash: Hash, length: int) -> None:
    """angle_i ~ atan(sqrt(sum_j w_ij (1 - w_ij) |V_j - (V_j . e_i) e_i|^2 / m) / |E_i|), hence m^-1/2.

    The form is an approximation (3 % in its source, and negative correlation of Hadamard hashes lowers the angle by
    some more), so the tolerance is that of the form, 6 % (12 %); the sampling error of a mean over >= 768 rows and 8
    seeds is below 2 %.
    """
    query, key, value = clustered(length, np.random.default_rng(length))
    weights = collision_probability(query, key, 8)
    expectation = weights @ value
    direction = unit(expectation)
    wide = value.astype(np.float64)
    across = (wide**2).sum(axis=1)[None, :] - (direction @ wide.T) ** 2
    spread = np.sqrt((weights * (1 - weights) * across).sum(axis=1)) / np.linalg.norm(expectation, axis=1)
    seeds = max(8, 768 // length)
    angles = {}
    for num_hashes in (16, 64, 256):
        inputs = {
            **{name: np.tile(x, (seeds, 1)) for name, x in (("query", query), ("key", key), ("value", value))},
            "cu_seqlens": offsets([length] * seeds),
            "num_hashes": np.full(seeds, num_hashes, np.int32),
            "seed": np.arange(seeds),
        }
        output = run("yoso", inputs, {"num_heads": 1, "hash_bits": 8, "hash": hash})[0].reshape(seeds, length, 64)
        angles[num_hashes] = np.arccos(np.clip((output * direction).sum(axis=2), -1, 1)).mean()
        formula = np.arctan(spread / np.sqrt(num_hashes)).mean()
        assert angles[num_hashes] == pytest.approx(formula, rel=0.06 if hash == "gaussian" else 0.12)
    assert angles[64] / angles[256] == pytest.approx(2, rel=0.08)


@pytest.mark.parametrize("head_dim", [8, 64])
def test_int8_rows_and_planes_keep_the_law_of_gaussian_ones(head_dim: int) -> None:
    """The share of equal bits of int8 rows and planes against 1 - angle / pi: within sampling error plus 4e-3."""
    rng = np.random.default_rng(11)
    num_planes = 30_000
    planes = gaussian_planes(77, 1, 2, num_planes, head_dim)
    rows = rng.standard_normal((24, head_dim)).astype(np.float32)
    rows[1::2] = rows[::2] * rng.uniform(0, 2, (12, 1)) + rows[1::2]
    angle = np.arccos((unit(rows)[::2] * unit(rows)[1::2]).sum(axis=1))
    bits = quantise(rows) @ planes.T > 0
    share = (bits[::2] == bits[1::2]).mean(axis=1)
    error = np.sqrt(angle / np.pi * (1 - angle / np.pi) / num_planes)
    assert (np.abs(share - (1 - angle / np.pi)) < stats.norm.isf(ALPHA / 24) * error + 4e-3).all()


def test_planes_are_standard_normal_and_independent() -> None:
    planes = gaussian_planes(123, 4, 5, 2000, 64) / 64
    share = stats.kstest(planes.reshape(-1) + np.random.default_rng(0).uniform(-1, 1, planes.size) / 64, "norm")
    assert share.pvalue > 1e-6  # spread over its step of 1/32 each value is normal
    count = planes.size
    assert abs(planes.mean()) < 5 / np.sqrt(count)
    assert abs(planes.var() - 1) < 5 * np.sqrt(2 / count) + 1e-3
    correlation = np.corrcoef(planes.T) - np.eye(64)
    assert np.abs(correlation).max() < stats.norm.isf(ALPHA / 64**2) / np.sqrt(2000)


def angles(rows: Array, others: Array) -> Array:
    return np.arccos(np.clip(unit(rows) @ unit(others).T, -1, 1))


@pytest.mark.parametrize("hash", HASHES)
def test_bias_of_the_ratio_is_its_leading_term(hash: Hash) -> None:
    """The mean over 40,000 seeds less the ratio of the expectations, along the term of order 1/m (README).

    Two-sided at ALPHA, after 0.15 for terms of higher order and the rounding to int8: a ratio without bias would lie at
    0, 13 standard errors away.
    """
    rng = np.random.default_rng(3)
    num_hashes, seeds, hash_bits = 8, 40_000, 4
    query = rng.standard_normal((1, 32)).astype(np.float32)
    closeness = np.array([[2.0], [1.0], [0.7], [0.4], [0.1], [-0.2]])
    key = (closeness * query + rng.standard_normal((6, 32))).astype(np.float32)
    value = rng.standard_normal((6, 8)).astype(np.float32)
    weights = collision_probability(query, key, hash_bits)[0]
    ratio = weights @ value / weights.sum()
    to_query, between = angles(query, key)[0], angles(key, key)
    both = (1 - (to_query[:, None] + to_query + between) / (2 * np.pi)) ** hash_bits
    leading = both.sum(axis=0) @ (ratio - value) / weights.sum() ** 2 / num_hashes
    inputs = {
        "query": np.tile(query, (seeds, 1)), "key": np.tile(key, (seeds, 1)), "value": np.tile(value, (seeds, 1)),
        "cu_seqlens": offsets([6] * seeds), "num_hashes": np.full(seeds, num_hashes, np.int32),
        "seed": np.arange(seeds) * 7919 + 3,
    }  # fmt: skip
    attributes = {"num_heads": 1, "hash_bits": hash_bits, "hash": hash, "normalize": 2, "queries": "first"}
    [output] = run("yoso", inputs, attributes)
    along = (output.astype(np.float64) - ratio) @ leading / (leading @ leading)
    assert abs(along.mean() - 1) < 0.15 + stats.norm.isf(ALPHA / 4) * along.std(ddof=1) / np.sqrt(seeds)


@pytest.mark.parametrize("bound", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("hash", HASHES)
def test_mean_over_seeds_is_the_expectation_of_lifted_rows(hash: Hash, bound: float) -> None:
    """Keys of 0.2 to 1.8 times the query's length of 1, below and above the bound on their square."""
    rng = np.random.default_rng(8)
    query, key = pairs(20, 30, rng)
    key *= (rng.uniform(0.2, 1.8, (30, 1)) / np.linalg.norm(key, axis=1, keepdims=True)).astype(np.float32)
    num_hashes, seeds, hash_bits = 32, 400, 5
    expected = collision_probability(query, key, hash_bits, bound)[0]
    observed = estimates(query, key, num_hashes, seeds, hash_bits, hash, bound)
    known = expected * num_hashes * seeds > 30
    slope = hash_bits / np.pi * expected ** (1 - 1 / hash_bits)
    error = np.sqrt(expected * (1 - expected) / (num_hashes * seeds)) + 2e-3 * slope
    assert known.sum() >= 10
    assert (np.abs(observed.mean(axis=0) - expected) / error)[known].max() < stats.norm.isf(ALPHA / 12 / known.sum())
