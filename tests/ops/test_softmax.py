"""SoftmaxAttention against its NumPy reference, its limits, and what its windows save."""

import itertools
import json
import time

import numpy as np
import pytest
from harness import Array, AttributeValue, in_process, offsets, run

from attenuator.ops.softmax.reference import probabilities, softmax_attention, visible

LENGTHS = (1, 2, 7, 16, 0, 17, 33, 64, 65, 100, 129, 257)


def attention_inputs(
    lengths: tuple[int, ...], heads: int, head_dim: int, value_dim: int, first: bool = False
) -> dict[str, Array]:
    rng = np.random.default_rng([sum(lengths), heads, head_dim, value_dim])
    tokens = sum(lengths)
    return {
        "query": rng.standard_normal((len(lengths) if first else tokens, heads * head_dim)).astype(np.float32),
        "key": rng.standard_normal((tokens, heads * head_dim)).astype(np.float32),
        "value": rng.standard_normal((tokens, heads * value_dim)).astype(np.float32),
        "cu_seqlens": offsets(lengths),
    }


def worst(inputs: dict[str, Array], attributes: dict[str, AttributeValue], threads: int = 1) -> float:
    """Largest error against the reference."""
    expected = softmax_attention(**inputs, **attributes)  # type: ignore[arg-type]
    return float(np.abs(run("softmax", inputs, attributes, threads)[0] - expected).max(initial=0))


@pytest.mark.parametrize("head_dim", [8, 9, 16, 20, 31, 32, 48, 63, 64, 65, 80, 96, 100, 128, 200, 256])
@pytest.mark.parametrize("heads", [1, 3])
def test_head_dims(head_dim: int, heads: int) -> None:
    assert worst(attention_inputs(LENGTHS, heads, head_dim, head_dim), {"num_heads": heads}) < 5e-6


@pytest.mark.parametrize("value_dim", [8, 13, 24, 64, 256])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_value_dim_of_its_own(value_dim: int, queries: str) -> None:
    inputs = attention_inputs(LENGTHS, 2, 40, value_dim, queries == "first")
    assert worst(inputs, {"num_heads": 2, "queries": queries}) < 5e-6


@pytest.mark.parametrize(
    "length", [*range(1, 40), 47, 48, 49, 63, 64, 65, 79, 80, 81, 127, 128, 129, 191, 192, 193, 320]
)
def test_every_small_length(length: int) -> None:
    assert worst(attention_inputs((length,), 1, 24, 24), {"num_heads": 1}) < 5e-6


@pytest.mark.parametrize("window", [1, 2, 7, 63, 64, 65, 128, 256, 2**30])
@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_windows(window: int, global_tokens: int, queries: str) -> None:
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2, "window": window, "global_tokens": global_tokens, "queries": queries
    }  # fmt: skip
    assert worst(attention_inputs((*LENGTHS, 500), 2, 24, 16, queries == "first"), attributes, threads=2) < 5e-6


def test_reference_window_is_longformers() -> None:
    visible_keys = visible(6, 6, window=1, global_tokens=1)
    assert (
        visible_keys.sum()
        == 6 + 6 + sum(1 for i, j in itertools.product(range(1, 6), range(1, 6)) if abs(i - j) <= 1) - 1
    )
    assert visible_keys[5].tolist() == [True, False, False, False, True, True]
    assert visible(6, 6, window=0).all()
    np.testing.assert_allclose(probabilities(np.ones((3, 2)), np.ones((3, 2)), window=1)[0], [0.5, 0.5, 0])


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5, 3.0])
def test_scale(scale: float) -> None:
    assert worst(attention_inputs((50, 3), 2, 16, 16), {"num_heads": 2, "scale": scale}) < 2e-5


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-3, 0.0156, 1 / 64, 64.0, 64.1, 1e4, 1e30, 2.5e38, 3.4e38])
@pytest.mark.parametrize("more", [{}, {"queries": "first"}, {"window": 9, "global_tokens": 1}], ids=str)
def test_scale_of_any_size(size: float, sign: int, more: dict[str, AttributeValue]) -> None:
    """Scores of usual size; with 1e-38 they overflow float32 where the scale is not there yet."""
    inputs = attention_inputs((50, 3, 90), 2, 16, 16, "queries" in more)
    inputs["query"] *= size**-0.5
    inputs["key"] *= size**-0.5
    assert worst(inputs, {"num_heads": 2, "scale": sign * size, **more}) < 2e-5


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(("scale", "infinite"), [(0.25, True), (1 / 65, False), (1e-30, False), (-1e-3, False)])
def test_scores_that_overflow_before_a_scale_of_usual_size_are_infinite(
    scale: float, infinite: bool, queries: str
) -> None:
    inputs = attention_inputs((30,), 1, 16, 16, queries == "first")
    inputs["query"][0] = np.copysign(1e19, scale)
    inputs["key"][7] = 3e18  # 4.8e38 with that query
    output = run("softmax", inputs, {"num_heads": 1, "scale": scale, "queries": queries})[0]
    assert np.isnan(output[0]).all() == infinite
    assert np.isfinite(output[1:]).all()
    if not infinite:
        expected = softmax_attention(**inputs, num_heads=1, scale=scale, queries=queries)
        np.testing.assert_allclose(output[0], expected[0], atol=1e-6)


def test_first_is_the_first_row_of_all() -> None:
    lengths = (5, 200, 0, 700)
    inputs = attention_inputs(lengths, 2, 32, 32)
    for window, global_tokens in ((0, 0), (50, 0), (50, 1)):
        attributes: dict[str, AttributeValue] = {"num_heads": 2, "window": window, "global_tokens": global_tokens}
        rows = inputs["cu_seqlens"][:-1][[0, 1, 3]]
        every = run("softmax", inputs, attributes)[0][rows]
        first = inputs | {"query": inputs["query"][inputs["cu_seqlens"][[0, 1, 0, 3]]]}
        output = run("softmax", first, attributes | {"queries": "first"})[0]
        np.testing.assert_allclose(output[[0, 1, 3]], every, atol=2e-6)
        assert not output[2].any()


@pytest.mark.parametrize("size", [30.0, 1e3, 1e6, 1e15])
def test_heavy_tails(size: float) -> None:
    """Scores far beyond exp's range: the softmax is then one key, exactly."""
    inputs = attention_inputs((70, 9), 1, 16, 16)
    inputs["key"][::7] *= size
    output = run("softmax", inputs, {"num_heads": 1})[0]
    assert np.isfinite(output).all()
    expected = softmax_attention(**inputs, num_heads=1)
    close = np.abs(output - expected).max(axis=1) < 1e-4 * max(1.0, size / 1e3)
    assert close.mean() > 0.9  # where two keys nearly tie, a float32 score of this size cannot tell them apart


def test_equal_keys_average_the_values() -> None:
    inputs = attention_inputs((1000,), 1, 16, 16)
    inputs["key"][:] = inputs["key"][0]
    output = run("softmax", inputs, {"num_heads": 1})[0]
    np.testing.assert_allclose(output, np.tile(inputs["value"].mean(axis=0, dtype=np.float64), (1000, 1)), atol=1e-6)


def test_a_value_that_no_row_weighs_counts_nothing() -> None:
    """Scores 200 below the largest weigh 0, not a denormal."""
    inputs = attention_inputs((40,), 1, 8, 8)
    inputs["query"][:] = 1.0
    inputs["key"][:] = 1.0
    inputs["key"][20:] = -100.0
    inputs["value"][20:] = 3e38
    expected = inputs["value"][:20].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(run("softmax", inputs, {"num_heads": 1})[0], np.tile(expected, (40, 1)), atol=1e-6)


def test_where_non_finite_rows_give_nan() -> None:
    inputs = attention_inputs((30, 20), 1, 8, 8)
    inputs["query"][3, 2] = np.nan
    inputs["key"][40, 1] = np.inf
    output = run("softmax", inputs, {"num_heads": 1})[0]
    nan = np.isnan(output).any(axis=1)
    assert nan[3]
    assert nan[:30].sum() == 1
    # A score of +inf makes its row NaN, one of -inf gives the key no weight.
    assert (nan[30:] == (inputs["query"][30:, 1] > 0)).all()


def test_an_infinite_value_makes_its_column_infinite_and_finite_ones_overflow() -> None:
    inputs = attention_inputs((1000, 20), 1, 8, 8)
    inputs["query"][:1000] = 0  # equal weights
    clean = run("softmax", inputs, {"num_heads": 1})[0]
    inputs["value"][40, 3] = -np.inf
    inputs["value"][:1000, 5] = 1e37
    output = run("softmax", inputs, {"num_heads": 1})[0]
    assert (output[:1000, 3] == -np.inf).all()
    assert np.isinf(output[:1000, 5]).all()
    clean[:1000, [3, 5]] = output[:1000, [3, 5]]
    np.testing.assert_array_equal(output, clean)


def test_long_sequence_sampled_rows() -> None:
    length, heads, head_dim = 65536, 1, 16
    inputs = attention_inputs((length,), heads, head_dim, head_dim)
    first = inputs | {"query": inputs["query"][:1]}
    expected = softmax_attention(**first, num_heads=1, queries="first")
    output = run("softmax", first, {"num_heads": 1, "queries": "first"}, threads=2)[0]
    np.testing.assert_allclose(output, expected, atol=1e-6)
    banded = run("softmax", inputs, {"num_heads": 1, "window": 100, "global_tokens": 1}, threads=2)[0]
    np.testing.assert_allclose(banded[:1], expected, atol=1e-6)
    for i in (1, 99, 101, 40000, length - 1):
        keys = np.unique(np.concatenate([[0], np.arange(max(0, i - 100), min(length, i + 101))]))
        weights = probabilities(inputs["query"][i : i + 1], inputs["key"][keys])
        np.testing.assert_allclose(banded[i : i + 1], weights @ inputs["value"][keys], atol=2e-6)


def test_full_long_sequence() -> None:
    inputs = attention_inputs((3000,), 2, 32, 32)
    assert worst(inputs, {"num_heads": 2}, threads=2) < 2e-6


@pytest.mark.parametrize("value_dim", [16, 20])
def test_rows_that_share_keys_with_many_others_keep_their_bits(value_dim: int) -> None:
    """A task takes the more rows of a sequence, the more heads there are."""
    heads, length = 16, 2100
    inputs = attention_inputs((length,), heads, 16, value_dim)
    together = run("softmax", inputs, {"num_heads": heads})[0].reshape(length, heads, value_dim)
    for h in (0, heads - 1):
        alone = {
            name: np.ascontiguousarray(inputs[name].reshape(length, heads, -1)[:, h])
            for name in ("query", "key", "value")
        } | {"cu_seqlens": inputs["cu_seqlens"]}
        assert np.array_equal(together[:, h], run("softmax", alone, {"num_heads": 1})[0])
        assert worst(alone, {"num_heads": 1}) < 2e-6


def cpu_seconds(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> float:
    """Least thread CPU time of a few runs."""
    times = []
    for _ in range(6):
        start = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
        run("softmax", inputs, attributes)
        times.append(time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - start)
    return min(times[1:])


def test_a_window_saves_work() -> None:
    inputs = attention_inputs((4096,), 1, 64, 64)
    full = cpu_seconds(inputs, {"num_heads": 1})
    banded = cpu_seconds(inputs, {"num_heads": 1, "window": 128, "global_tokens": 1})
    assert banded < full / 4  # the band is 1/16 of the scores, its blocks 1/13


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    script = """
import json, resource
import numpy as np
from harness import offsets, run
def peak(length):
    rows = np.ones((length, 16), np.float32)
    run("softmax", {"query": rows, "key": rows, "value": rows, "cu_seqlens": offsets([length])}, {"num_heads": 1})
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([peak(64), peak(12000)]))
"""
    process = in_process(script)
    assert process.returncode == 0, process.stderr
    small, large = json.loads(process.stdout)
    assert large - small < 16 * 1024  # KiB; the scores alone would be 562 MiB
