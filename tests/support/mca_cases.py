"""Inputs of McaAttention, and its comparison with the reference."""

from collections.abc import Sequence

import numpy as np
from harness import Array, AttributeValue, offsets, run

from attenuator.ops.mca import reference, reference_plan, rule
from attenuator.ops.softmax.reference import probabilities

WEIGHTS = ("value_weight", "value_bias")
ESTIMATORS = ("sampled", "deterministic", "paper")


def mca_inputs(
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
    inputs: dict[str, Array], attributes: dict[str, AttributeValue], b: int, head: int, factors: Sequence[float]
) -> list[Array]:
    """What a head decides of its tokens if all maxima are off by a factor: r, or 1 where replaced; 0 = exact: [n]."""
    heads = int(attributes["num_heads"])
    window, global_tokens = int(attributes.get("window", 0)), int(attributes.get("global_tokens", 0))
    estimator, alpha = str(attributes.get("estimator", "sampled")), float(inputs["alpha"][b])
    rows = slice(inputs["cu_seqlens"][b], inputs["cu_seqlens"][b + 1])
    length, channels, head_dim = rows.stop - rows.start, inputs["hidden"].shape[1], inputs["key"].shape[1] // heads
    block = slice(head * head_dim, (head + 1) * head_dim)
    weight, exact = inputs["value_weight"][:, block], np.zeros(length)
    places = inputs["positions"][rows] if "positions" in inputs and length else None
    span = reference_plan.span_of(places)
    if (
        length == 0
        or alpha == 0
        or attributes.get("queries") == "first"
        or not weight.any()
        or not rule.worth_approximating(length, channels, alpha, estimator, window, global_tokens, span)
    ):
        return [exact for _ in factors]
    keys, wide_first = rule.row_keys(length, window, global_tokens, span)
    scale = float(attributes.get("scale", 0.0))
    a = probabilities(inputs["query"][rows, block], inputs["key"][rows, block], scale, window, global_tokens, places)
    x = inputs["hidden"][rows].astype(np.float64)
    distances = np.linalg.norm(x - x.mean(axis=0), axis=1)
    beta = reference_plan.smallest_row_sum(np.linalg.norm(x, axis=1), window, global_tokens, places) / keys
    overhead = channels * (1 + length / head_dim) if wide_first else 0.0
    probe = rule.probe_of(length, window, span)

    def plan(factor: float) -> Array:
        if probe.rows and estimator != "paper":
            maxima = factor * a[probe.first_row : probe.first_row + probe.rows].max(axis=0)
            to_save = overhead + rule.maxima_cost(length, window, head_dim, span)
            if not reference_plan.probe_pays(maxima, distances, weight, keys, alpha, estimator, probe, to_save, beta):
                return exact
        maxima = factor * a[int(wide_first) :].max(axis=0)
        if estimator == "deterministic":
            dropped = reference_plan.replaced(distances, weight, maxima, keys, alpha, beta)
            return dropped.astype(float) if channels * (dropped.sum() - 1) > overhead else exact
        required = reference_plan.required_samples(maxima, keys, alpha)
        if estimator == "paper":
            r = np.minimum(np.maximum(1.0, np.ceil(required)), channels)
            return np.where(r < channels, r, 0) if (channels - r).sum() >= overhead else exact
        r, sampled = reference_plan.samples_of(required, channels)
        pays = reference_plan.worth_sampling(sampled.sum(), r[sampled].sum(), channels, head_dim, overhead)
        return np.where(sampled, r, 0) if pays else exact

    return [plan(factor) for factor in factors]


def clear_heads(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> Array:
    """Where r and the choice of rows do not hang on the rounding of float32: [B, H]."""
    rounding = 1e-5 if attributes.get("estimator") == "deterministic" else 1e-6
    clear = np.ones((len(inputs["alpha"]), int(attributes["num_heads"])), bool)
    for b, h in np.ndindex(clear.shape):
        clear[b, h] = np.array_equal(*plans(inputs, attributes, b, h, (1 - rounding, 1 + rounding)))
    return clear


def check(inputs: dict[str, Array], attributes: dict[str, AttributeValue], threads: int = 1) -> Array:
    """Compares every clear head with the reference; returns value_flops."""
    output, flops = run("mca", inputs, attributes, threads, WEIGHTS)
    expected, expected_flops = reference.mca_attention(**inputs, **attributes)  # type: ignore[arg-type]
    clear = clear_heads(inputs, attributes)
    assert clear.mean() > 0.7
    rows = np.arange(len(inputs["alpha"])) if attributes.get("queries") == "first" else None
    if rows is None:
        rows = np.repeat(np.arange(len(inputs["alpha"])), np.diff(inputs["cu_seqlens"]))
    heads = int(attributes["num_heads"])
    shape = (len(rows), heads, -1)
    error = np.abs(output - expected).reshape(shape).max(axis=2, initial=0)
    size = np.abs(expected).max(initial=1)
    assert error[clear[rows]].max(initial=0) < 2e-5 * size
    whole = clear.all(axis=1)
    np.testing.assert_allclose(flops[whole], expected_flops[whole], rtol=1e-6)
    return flops
