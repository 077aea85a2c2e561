"""SoftmaxAttention with products in int8: against its own reference, the exact one, and neighbours in the batch."""

import numpy as np
import pytest
from harness import Array, AttributeValue, in_process, isa, offsets, run
from int8_cases import LENGTHS, draw

from attenuator.ops.softmax.reference import attention_importance, softmax_attention
from attenuator.ops.softmax.reference_int8 import FEWEST_KEYS, int8_softmax_attention

pytestmark = pytest.mark.skipif(isa() not in ("avx512_vnni", "avx512_amx"), reason="the processor lacks VNNI")
INT8 = {"int8_products": 1}


def outputs(inputs: dict[str, Array], threads: int = 1, **attributes: AttributeValue) -> list[Array]:
    return run("softmax", inputs, INT8 | attributes, threads)


def check(inputs: dict[str, Array], bound: float = 0.02, **attributes: AttributeValue) -> None:
    """As its own reference but for float32 sums; the exact result within `bound` of the values' spread, in the mean."""
    output = outputs(inputs, **attributes)[0]
    expected = int8_softmax_attention(**inputs, **attributes)  # type: ignore[arg-type]
    np.testing.assert_allclose(output, expected, atol=3e-5 * np.abs(inputs["value"]).max())
    exact = softmax_attention(**inputs, **attributes)  # type: ignore[arg-type]
    error = np.abs(output - exact) / inputs["value"].std(axis=0).max()
    assert np.sqrt(np.mean(error**2)) < bound
    assert error.max() < 10 * bound


@pytest.mark.parametrize("head_dim", [8, 9, 16, 31, 50, 64, 65, 100, 128, 256])
def test_head_dims(head_dim: int) -> None:
    check(draw(LENGTHS, 2, head_dim, head_dim), num_heads=2)


@pytest.mark.parametrize("value_dim", [8, 13, 24, 80, 256])
def test_value_dim_of_its_own(value_dim: int) -> None:
    check(draw(LENGTHS, 3, 40, value_dim), num_heads=3)


@pytest.mark.parametrize("length", [*range(48, 82), 111, 112, 113, 191, 192, 193, 255, 256, 320, 700])
def test_every_small_length(length: int) -> None:
    check(draw((length,), 1, 24, 24), num_heads=1)


@pytest.mark.parametrize("window", [1, 2, 7, 63, 64, 65, 128, 200, 2**30])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_windows(window: int, global_tokens: int) -> None:
    check(draw((*LENGTHS, 500), 2, 24, 16), num_heads=2, window=window, global_tokens=global_tokens)


@pytest.mark.parametrize("global_tokens", [0, 1])
def test_windows_by_position(global_tokens: int) -> None:
    inputs = draw((60, 300), 2, 24, 16)
    rng = np.random.default_rng(0)
    inputs["positions"] = np.concatenate([np.sort(rng.choice(2 * n, n, replace=False)) for n in (60, 300)])
    check(inputs, num_heads=2, window=30, global_tokens=global_tokens)


@pytest.mark.parametrize("more", [{}, {"window": 20, "global_tokens": 1}], ids=str)
def test_a_last_key_that_stands_for_several(more: dict[str, AttributeValue]) -> None:
    lengths = (48, 50, 127, 128, 129, 200)
    inputs = draw(lengths, 2, 32, 32)
    inputs["unmerged_cu_seqlens"] = offsets([n + m for n, m in zip(lengths, (0, 1, 5, 300, 2, 9), strict=True)])
    check(inputs, num_heads=2, **more)
    inputs["query"] *= 1e-6  # scores next to nothing beside the logarithm
    check(inputs, num_heads=2, **more)


@pytest.mark.parametrize("length", [48, 128, 129, 256])
@pytest.mark.parametrize("more", [{}, {"importance": "maximum"}, {"window": 200}], ids=str)
def test_a_last_key_that_stands_for_many_hides_no_other(length: int, more: dict[str, AttributeValue]) -> None:
    """Others weigh a thousandth: a byte beside it would be 0."""
    inputs = draw((length,), 1, 8, 8)
    inputs["key"][:] = inputs["key"][0]
    inputs["value"][:] = np.arange(length)[:, None] < length - 1
    inputs["unmerged_cu_seqlens"] = offsets([length + 999])
    output = outputs(inputs, num_heads=1, **more)[0]
    exact = softmax_attention(**inputs, num_heads=1, window=int(more.get("window", 0)))
    np.testing.assert_allclose(output, exact, atol=0.01)


@pytest.mark.parametrize("scores", [44, 100, 1000])
def test_a_last_key_that_stands_for_several_beside_the_largest_sums(scores: int) -> None:
    """Keys of one direction and queries along it: each of 256 products is the largest there is."""
    length, head_dim = 64, 256
    inputs = draw((length,), 1, head_dim, 8)
    inputs["query"][:] = scores / head_dim
    inputs["key"][:] = np.where(np.arange(length) % 2, 1, -1)[:, None]
    inputs["unmerged_cu_seqlens"] = offsets([length + 300])
    check(inputs, num_heads=1, scale=1.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, -0.2, 0.3, 50.0, 1e4, 1e28])
@pytest.mark.parametrize("more", [{}, {"window": 9, "global_tokens": 1}], ids=str)
def test_scale_of_any_size(scale: float, more: dict[str, AttributeValue]) -> None:
    """Scores of usual size, however they come about."""
    inputs = draw((50, 3, 200), 2, 16, 16)
    inputs["query"] *= (0.25 / abs(scale)) ** 0.5
    inputs["key"] *= (0.25 / abs(scale)) ** 0.5
    check(inputs, num_heads=2, scale=scale, **more)


def test_a_large_mean_of_keys_costs_nothing() -> None:
    inputs = draw((300,))
    near = outputs(inputs, num_heads=2)[0] - softmax_attention(**inputs, num_heads=2)
    inputs["key"] += 100 * np.sign(inputs["key"][:1])
    far = outputs(inputs, num_heads=2)[0] - softmax_attention(**inputs, num_heads=2)
    assert np.abs(far).max() < 2 * np.abs(near).max()


@pytest.mark.parametrize(("name", "bound"), [("key", 0.1), ("query", 0.1), ("value", 0.02)])
def test_one_huge_channel(name: str, bound: float) -> None:
    """Eight times as large as others: keys have one scale, queries one a row, values one a column."""
    inputs = draw((300,))
    inputs[name][:, 5::64] *= 8
    check(inputs, bound, num_heads=2, scale=0.02)


@pytest.mark.parametrize("name", ["key", "value"])
def test_one_huge_token(name: str) -> None:
    inputs = draw((300,))
    inputs[name][17] *= 8
    check(inputs, 0.1, num_heads=2, scale=0.02)


def test_scores_far_beyond_the_range_of_exp_choose_one_key() -> None:
    inputs = draw((70, 500), 1, 16, 16)
    inputs["query"] *= 1e3
    inputs["key"][::7] *= 1e3
    output = outputs(inputs, num_heads=1)[0]
    assert np.isfinite(output).all()
    close = np.abs(output - softmax_attention(**inputs, num_heads=1)).max(axis=1) < 0.05
    assert close.mean() > 0.8  # among two keys that nearly tie int8 may choose the other


def test_equal_keys_average_the_values() -> None:
    inputs = draw((1000,), 1, 16, 16)
    inputs["key"][:] = inputs["key"][0]
    output = outputs(inputs, num_heads=1)[0]
    np.testing.assert_allclose(output, np.tile(inputs["value"].mean(axis=0), (1000, 1)), atol=2e-3)


def test_equal_values_are_the_output() -> None:
    inputs = draw((300,))
    inputs["value"][:] = inputs["value"][0]
    np.testing.assert_allclose(outputs(inputs, num_heads=2)[0], inputs["value"], rtol=1e-6)


def test_a_long_flat_row_does_not_round_to_nothing() -> None:
    """One key weighs 1000 times as much as each of 2000 others, whose byte would be 0 beside it."""
    inputs = draw((2001,), 1, 8, 8)
    inputs["query"][:] = 1
    inputs["key"][:] = 0
    inputs["key"][1500] = np.log(1000) / 8**0.5
    exact = softmax_attention(**inputs, num_heads=1)
    assert np.abs(outputs(inputs, num_heads=1)[0] - exact).max() < 0.1


def test_rows_that_are_not_finite_behave_as_in_float() -> None:
    """A query makes its row NaN; keys and values send their head to float; neighbours keep their bits."""
    inputs = draw((100, 60, 80))
    clean = outputs(inputs, num_heads=2)[0]
    inputs["query"][3, 2], inputs["query"][4, 70] = np.nan, np.inf
    output = outputs(inputs, num_heads=2)[0]
    assert np.isnan(output[3, :64]).all()
    assert np.isnan(output[4, 64:]).all()
    clean[3, :64] = clean[4, 64:] = np.nan
    np.testing.assert_array_equal(output, clean)
    inputs["key"][110, 1], inputs["value"][120, 70] = np.inf, np.nan
    output, exact = outputs(inputs, num_heads=2)[0], run("softmax", inputs, {"num_heads": 2})[0]
    np.testing.assert_array_equal(output[100:160], exact[100:160])
    np.testing.assert_array_equal(output[160:], clean[160:])
    np.testing.assert_array_equal(output[:100], clean[:100])


@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-20, 1e19, 3.4e38])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_numbers_of_any_size_are_no_worse_than_in_float(name: str, size: float) -> None:
    inputs = draw((100,))
    inputs[name] = np.clip(inputs[name], -1, 1) * np.float32(size)
    with np.errstate(all="ignore"):
        exact = run("softmax", inputs, {"num_heads": 2})[0]
    finite = np.isfinite(exact)
    assert np.isfinite(outputs(inputs, num_heads=2)[0][finite]).all()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"window": 50, "global_tokens": 1},
        {"window": 20},
        {"importance": "maximum"},
        {"importance": "maximum", "window": 30},
    ],
    ids=str,
)
def test_neither_neighbours_nor_threads_change_a_bit(attributes: dict[str, AttributeValue]) -> None:
    lengths = (70, 3, 600, 0, 48, 1300, 129)
    inputs = draw(lengths, 3, 20, 24)
    crowd = outputs(inputs, num_heads=3, **attributes)
    for threads in (2, 5):
        for ours, theirs in zip(outputs(inputs, threads, num_heads=3, **attributes), crowd, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for begin, end in zip(inputs["cu_seqlens"][:-1], inputs["cu_seqlens"][1:], strict=True):
        alone = {name: inputs[name][begin:end] for name in ("query", "key", "value")}
        alone["cu_seqlens"] = offsets([end - begin])
        for ours, theirs in zip(outputs(alone, num_heads=3, **attributes), crowd, strict=True):
            np.testing.assert_array_equal(ours, theirs[begin:end])


def test_a_head_has_the_same_bits_among_many() -> None:
    """A task takes more rows of a sequence, the more heads there are."""
    heads, length = 16, 1100
    inputs = draw((length,), heads, 16, 20)
    together = outputs(inputs, num_heads=heads)[0].reshape(length, heads, 20)
    for h in (0, heads - 1):
        alone = {
            name: np.ascontiguousarray(inputs[name].reshape(length, heads, -1)[:, h])
            for name in ("query", "key", "value")
        } | {"cu_seqlens": inputs["cu_seqlens"]}
        np.testing.assert_array_equal(together[:, h], outputs(alone, num_heads=1)[0])


@pytest.mark.parametrize("more", [{}, {"window": 30}, {"window": 30, "global_tokens": 1}], ids=str)
@pytest.mark.parametrize("importance", ["first", "maximum"])
def test_importance(importance: str, more: dict[str, AttributeValue]) -> None:
    inputs = draw((49, 130, 300))
    attributes: dict[str, AttributeValue] = {"num_heads": 2, **more}
    output, keys = outputs(inputs, importance=importance, **attributes)
    np.testing.assert_array_equal(output, outputs(inputs, **attributes)[0])
    sides = {name: inputs[name] for name in ("query", "key", "cu_seqlens")}
    exact = attention_importance(**sides, importance=importance, **attributes)  # type: ignore[arg-type]
    np.testing.assert_allclose(keys, exact, atol=0.06)
    inputs["query"][60] = np.nan
    np.testing.assert_allclose(outputs(inputs, importance=importance, **attributes)[1], exact, atol=0.06)


def test_short_sequences_and_first_rows_are_computed_in_float() -> None:
    inputs = draw((FEWEST_KEYS - 1, 1, 30))
    np.testing.assert_array_equal(outputs(inputs, num_heads=2)[0], run("softmax", inputs, {"num_heads": 2})[0])
    inputs = draw((100, 200))
    inputs["query"] = inputs["query"][:2]
    first: dict[str, AttributeValue] = {"num_heads": 2, "queries": "first"}
    np.testing.assert_array_equal(outputs(inputs, **first)[0], run("softmax", inputs, first)[0])


@pytest.mark.parametrize("lower", ["avx2", "avx512"])
def test_without_vnni_the_bits_are_those_of_float(lower: str) -> None:
    script = (
        "import numpy as np\n"
        "from test_softmax_int8 import draw, outputs, run\n"
        "inputs = draw((100, 200))\n"
        "np.testing.assert_array_equal(outputs(inputs, num_heads=2)[0], run('softmax', inputs, {'num_heads': 2})[0])\n"
    )
    done = in_process(script, ATTENUATOR_ISA=lower)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("length", [48, 128, 300, 1030])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.98])
def test_a_key_that_takes_most_of_each_row_does_not_hide_the_others(length: int, share: float) -> None:
    """As heads of trained models rest on one token, whose value is next to nothing."""
    rng = np.random.default_rng(length)
    query, key, value = rng.standard_normal((3, length, 64)) * [[[0.3]], [[0.3]], [[1.0]]]
    query[:, 0], key[:, 0], value[0] = 8, 0, 0
    key[0, 0] = np.log(share / (1 - share) * (length - 1))
    inputs = {"query": query, "key": key, "value": value, "cu_seqlens": np.array([0, length])}
    inputs = {name: array.astype(np.int32 if name == "cu_seqlens" else np.float32) for name, array in inputs.items()}
    output, importance = outputs(inputs, num_heads=1, importance="maximum")
    exact, exact_importance = run("softmax", inputs, {"num_heads": 1, "importance": "maximum"})
    assert np.sqrt(np.mean((output - exact) ** 2)) < 0.008  # of values with a standard deviation of 1
    assert np.abs(importance - exact_importance).max() < 0.02  # rows computed in float count in it, too
