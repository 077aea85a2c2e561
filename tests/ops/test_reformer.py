"""ReformerAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
from harness import Array, offsets, run

from attenuator.ops.reformer.reference import (
    buckets,
    buckets_of,
    chunks_of,
    reformer_attention,
    rotations,
    sees,
    unit_keys,
)

LENGTHS = (3, 0, 1, 2, 64, 130, 300, 17, 257)


def attention_inputs(
    lengths: tuple[int, ...], heads: int, head_dim: int, value_dim: int, rounds: tuple[int, ...] = (3, 0, 1, 2, 7)
) -> dict[str, Array]:
    rng = np.random.default_rng([heads, head_dim, value_dim])
    total = sum(lengths)
    return {
        "query": (2 * rng.standard_normal((total, heads * head_dim))).astype(np.float32),
        "value": rng.standard_normal((total, heads * value_dim)).astype(np.float32),
        "cu_seqlens": offsets(lengths),
        "num_rounds": np.resize(np.array(rounds), len(lengths)).astype(np.int32),
        "seed": np.arange(len(lengths)).astype(np.int64) + 5,
    }


def clustered(tokens: int, clusters: int, head_dim: int, noise: float, seed: int) -> tuple[Array, Array]:
    """Rows around a few directions, and values that go with them, as where attention finds its own topic."""
    rng = np.random.default_rng(seed)
    which = rng.integers(clusters, size=tokens)
    rows = 4 * rng.standard_normal((clusters, head_dim))[which] + noise * rng.standard_normal((tokens, head_dim))
    values = rng.standard_normal((clusters, head_dim))[which] + rng.standard_normal((tokens, head_dim))
    return rows.astype(np.float32), values.astype(np.float32)


@pytest.mark.parametrize(
    ("heads", "head_dim", "value_dim", "chunk_size", "num_buckets"),
    [
        (1, 8, 8, 64, 128), (2, 31, 33, 16, 128), (3, 64, 64, 64, 128), (1, 100, 24, 70, 8),
        (1, 256, 255, 8, 4096), (2, 16, 16, 1, 128), (2, 9, 40, 100, 3), (1, 16, 16, 3, 2),
    ],
)  # fmt: skip
def test_equals_the_reference(heads: int, head_dim: int, value_dim: int, chunk_size: int, num_buckets: int) -> None:
    inputs = attention_inputs(LENGTHS, heads, head_dim, value_dim)
    attributes = {"num_heads": heads, "chunk_size": chunk_size, "num_buckets": num_buckets, "layer": 3}
    [output] = run("reformer", inputs, attributes, threads=2)
    np.testing.assert_allclose(output, reformer_attention(**inputs, **attributes), atol=2e-6)


@pytest.mark.parametrize("scale", [1.0, -0.3, 1e-4])
@pytest.mark.parametrize("size", [1e-30, 0.01, 30.0])
def test_rows_of_any_size_and_any_scale(scale: float, size: float) -> None:
    """Keys have length 1 whatever the rows have, down to 1e-12; scores are as large as the rows, and so are errors."""
    inputs = attention_inputs((200, 40), 2, 16, 16, (2, 0))
    inputs["query"] *= np.float32(size)
    attributes = {"num_heads": 2, "scale": scale, "chunk_size": 16}
    [output] = run("reformer", inputs, attributes)
    largest = abs(scale) * np.linalg.norm(inputs["query"], axis=1).max()
    expected = reformer_attention(**inputs, **attributes)
    np.testing.assert_allclose(output, expected, atol=1e-6 * max(2, float(largest)))


def test_ties_fall_alike() -> None:
    """Rows of few different values, zeros and repeated ones: many projections are equal, and none is rounded."""
    inputs = attention_inputs((333,), 2, 8, 8, (12,))
    rng = np.random.default_rng(9)
    inputs["query"] = rng.choice(np.array([0, 0, 0, 1, -1], np.float32), inputs["query"].shape)
    inputs["query"][::7] = 0
    attributes = {"num_heads": 2, "chunk_size": 8}
    [output] = run("reformer", inputs, attributes)
    np.testing.assert_allclose(output, reformer_attention(**inputs, **attributes), atol=2e-6)


def test_rounds_that_would_meet_as_many_keys_as_there_are_give_exact_bits() -> None:
    """Two chunks see each other in any round; beyond, all keys take no more time."""
    inputs = attention_inputs((1, 16, 17, 32, 160, 161), 2, 16, 16, (0,))
    attributes = {"num_heads": 2, "chunk_size": 16}
    [exact] = run("reformer", inputs, attributes)
    inputs["num_rounds"][:] = (1, 1, 1, 1, 5, 5)
    [rounds] = run("reformer", inputs, attributes)
    assert exact[:-161].tobytes() == rounds[:-161].tobytes()
    assert np.abs(exact[-161:] - rounds[-161:]).max() > 1e-4
    np.testing.assert_array_equal(exact[0], inputs["value"][0])


def test_one_chunk_holds_everything() -> None:
    inputs = attention_inputs((500,), 1, 24, 16, (3,))
    attributes = {"num_heads": 1, "chunk_size": 512}
    [output] = run("reformer", inputs, attributes)
    keys = unit_keys(inputs["query"])
    scores = inputs["query"].astype(np.float64) @ keys.T / np.sqrt(24)
    np.fill_diagonal(scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(output, weights @ inputs["value"] / weights.sum(axis=1, keepdims=True), atol=2e-6)


@pytest.mark.parametrize("length", [511, 512, 513, 1500])
def test_threads_and_runs_of_chunks_change_no_bit(length: int) -> None:
    inputs = attention_inputs((7, length, 150), 2, 24, 40, (5,))
    attributes = {"num_heads": 2, "chunk_size": 32}
    outputs = [run("reformer", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    np.testing.assert_allclose(outputs[0], reformer_attention(**inputs, **attributes), atol=2e-6)


def test_seed_layer_and_head_draw_rotations_of_their_own() -> None:
    drawn = {rotations(*key, 0, 2, 8).tobytes() for key in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]}
    assert len(drawn | {rotations(1, 0, 0, 1, 2, 8).tobytes()}) == 5
    np.testing.assert_array_equal(rotations(1, 0, 0, 3, 9, 8)[:5], rotations(1, 0, 0, 3, 5, 8))


def test_rows_at_an_angle_meet_as_often_as_the_angle_says() -> None:
    """With two buckets P(same) = 1 - angle / pi. 4,000 rounds: outside of four standard errors 1 time in 15,000."""
    rounds, cosine = 4000, 0.5
    pair = np.zeros((2, 32), np.float32)
    pair[0, 0], pair[1, :2] = 1, (cosine, np.sqrt(1 - cosine**2))
    pair = pair @ np.linalg.qr(np.random.default_rng(3).standard_normal((32, 32)))[0].astype(np.float32)
    met = [len(set(buckets(pair, rotations(11, 0, 0, number, 1, 32)))) == 1 for number in range(rounds)]
    expected = 1 - np.arccos(cosine) / np.pi
    assert abs(np.mean(met) - expected) < 4 * np.sqrt(expected * (1 - expected) / rounds)


def test_number_of_buckets_follows_the_length() -> None:
    assert [buckets_of(n, 64, 128) for n in (1, 64, 65, 4096, 5000, 100_000)] == [2, 2, 4, 128, 128, 128]
    assert buckets_of(1000, 64, 7) == 6


def test_the_first_chunk_sees_the_last_one_of_its_round() -> None:
    chunk = chunks_of(np.array([4, 0, 2, 3, 1]), 2)
    assert chunk.tolist() == [0, 2, 1, 1, 0]
    seen = [np.flatnonzero(row).tolist() for row in sees(chunk)]
    assert seen == [[0, 1, 4], [1, 2, 3], [0, 2, 3, 4], [0, 2, 3, 4], [0, 1, 4]]


def test_error_falls_with_rounds() -> None:
    """On clustered rows, over 60 seeds: each doubling's gain is 5 standard errors above 0 (one chance in 3 million)."""
    seeds, tokens = 60, 600
    rows, values = clustered(tokens, 12, 16, 0.7, seed=4)
    inputs = {
        "query": np.tile(rows, (seeds, 1)),
        "value": np.tile(values, (seeds, 1)),
        "cu_seqlens": offsets([tokens] * seeds),
        "seed": np.arange(seeds, dtype=np.int64),
    }
    attributes = {"num_heads": 1, "chunk_size": 16}

    def output(rounds: int) -> Array:
        knob = np.full(seeds, rounds, np.int32)
        return run("reformer", inputs | {"num_rounds": knob}, attributes, 2)[0].reshape(seeds, tokens, -1)

    exact = output(0)
    errors = {rounds: np.linalg.norm(output(rounds) - exact, axis=(1, 2)) for rounds in (1, 2, 4, 8, 16)}
    for rounds in (1, 2, 4, 8):
        gains = errors[rounds] - errors[2 * rounds]
        assert gains.mean() > 5 * gains.std(ddof=1) / np.sqrt(seeds), rounds
    assert errors[16].mean() < 0.5 * errors[1].mean()


def test_no_row_of_another_sequence_is_seen() -> None:
    inputs = attention_inputs((150, 150), 1, 16, 16, (2,))
    [before] = run("reformer", inputs, {"num_heads": 1, "chunk_size": 16})
    inputs["value"][150:] = 1e6
    [after] = run("reformer", inputs, {"num_heads": 1, "chunk_size": 16})
    assert before[:150].tobytes() == after[:150].tobytes()
