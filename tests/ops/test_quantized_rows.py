"""QuantizeRows, DequantizeProduct and RequantizeProduct: their bits, and that a row's depend on that row alone."""

import hashlib
from collections.abc import Mapping

import numpy as np
import pytest
from cases import same_bits
from harness import Array, in_process, isa, run
from instruction_sets import ISAS
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.dequantize_product.reference import ACTIVATIONS, dequantize_product
from attenuator.ops.quantize_rows.reference import quantize_rows
from attenuator.ops.quantize_rows.rule import HIGH, TINY, ZERO_POINT
from attenuator.ops.requantize_product.reference import requantize_product

WIDTHS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257, 768)
SIZES = np.array([1, 30, 1e-3, 0, 1e6, 1e-12, 1e30, 1e-30, 1e-37, 1e-42], np.float32)
HOSTILE = (np.nan, -np.nan, np.inf, -np.inf)


def rows_of(count: int, columns: int, seed: int = 0) -> Array:
    """Gaussian rows of many sizes."""
    rows = np.random.default_rng([seed, count, columns]).standard_normal((count, columns))
    return (rows * SIZES[np.arange(count) % len(SIZES), None]).astype(np.float32)


def product_of(count: int, columns: int, residual: bool, bias: bool = True, seed: int = 0) -> dict[str, Array]:
    """Sums, scales and what is added, such that values lie around 0 and reach tens."""
    rng = np.random.default_rng([seed, count, columns])
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    inputs = {
        "sums": rng.integers(-(2**20), 2**20, (count, columns), np.int32),
        "row_scale": np.abs(normal(count)) * np.float32(1e-3),
        "channel_scale": np.abs(normal(columns)) * np.float32(1e-2),
    }
    inputs |= {"bias": normal(columns)} if bias else {}
    return inputs | ({"residual": normal(count, columns)} if residual else {})


def norm_of(columns: int, seed: int = 0) -> dict[str, Array]:
    """Weight and bias of a LayerNormalization."""
    rng = np.random.default_rng([seed, columns, 2])
    return {name: rng.standard_normal(columns).astype(np.float32) for name in ("norm_weight", "norm_bias")}


def in_turn(inputs: Mapping[str, Array], activation: str) -> Array:
    """The standard nodes in float32, one rounding after another; no gelu."""
    values = inputs["sums"].astype(np.float32) * inputs["row_scale"][:, None] * inputs["channel_scale"]
    values = values + inputs["bias"] if "bias" in inputs else values
    values = np.maximum(values, 0) if activation == "relu" else values
    return values + inputs["residual"] if "residual" in inputs else values


@pytest.mark.parametrize("count", [0, 1, 21])
@pytest.mark.parametrize("columns", WIDTHS)
def test_rows_are_quantized_to_the_bits_of_the_reference(count: int, columns: int) -> None:
    rows = rows_of(count, columns)
    quantized, scale = run("QuantizeRows", {"rows": rows}, {})
    assert same_bits((quantized, scale), quantize_rows(rows))
    assert (np.abs(quantized.astype(int) - ZERO_POINT) <= HIGH).all()
    error = np.abs((quantized.astype(float) - ZERO_POINT) * scale[:, None] - rows)
    assert (error <= scale[:, None] * (0.5 + 1e-4)).all()


def test_quotients_next_to_a_half_are_rounded_as_a_division_rounds_them() -> None:
    rng = np.random.default_rng(5)
    rows = np.empty((4000, 128), np.float32)
    rows[:, 0] = rng.uniform(1, 2, 4000) * 2.0 ** rng.integers(-90, 120, 4000)
    scale = rows[:, 0] * np.float32(1 / HIGH) + np.float32(TINY)
    halves = (np.arange(127) + 0.5) * scale.astype(float)[:, None] * rng.choice([1, -1], (4000, 127))
    rows[:, 1:] = halves.astype(np.float32)
    rows.view(np.int32)[:, 1:] += rng.integers(-2, 3, (4000, 127), np.int32)  # units of the last place
    np.clip(rows, -rows[:, :1], rows[:, :1], out=rows)
    assert same_bits(run("QuantizeRows", {"rows": rows}, {}), quantize_rows(rows))


@pytest.mark.parametrize("columns", [1, 9, 64, 200])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_row_that_is_not_finite_has_no_scale_and_no_other_row_changes(value: float, columns: int) -> None:
    rows = rows_of(5, columns)
    clean = run("QuantizeRows", {"rows": rows}, {})
    for place in {0, columns // 2, columns - 1}:
        hostile = rows.copy()
        hostile[2, place] = value
        quantized, scale = run("QuantizeRows", {"rows": hostile}, {})
        assert np.isnan(scale[2])
        assert not quantized[2].any()
        others = [0, 1, 3, 4]
        assert same_bits([quantized[others], scale[others]], [each[others] for each in clean])


def test_the_largest_rows_have_a_scale() -> None:
    rows = np.full((2, 1000), np.finfo(np.float32).max, np.float32)
    rows[1] *= -1
    quantized, scale = run("QuantizeRows", {"rows": rows}, {})
    assert np.isfinite(scale).all()
    assert (quantized == [[ZERO_POINT + HIGH], [ZERO_POINT - HIGH]]).all()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_product_is_dequantized(columns: int, activation: str, bias: bool, residual: bool) -> None:
    inputs = product_of(5, columns, residual, bias)
    [output] = run("DequantizeProduct", inputs, {"activation": activation})
    expected = dequantize_product(**inputs, activation=activation)
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=2e-6 * max(1, np.abs(expected).max()))
    if not activation.startswith("gelu"):
        assert same_bits([output], [in_turn(inputs, activation)])


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-5, 0.5])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("columns", [*WIDTHS[1:], 127, 1000])
def test_a_products_rows_are_normalized(columns: int, residual: bool, epsilon: float) -> None:
    inputs = product_of(7, columns, residual) | norm_of(columns)
    [output] = run("DequantizeProduct", inputs, {"epsilon": epsilon})
    np.testing.assert_allclose(output, dequantize_product(**inputs, epsilon=epsilon), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("columns", [17, 768])
@pytest.mark.parametrize("mean", [10, 1e3, -1e5, 1e7])
def test_rows_far_from_zero_keep_their_digits(mean: float, columns: int) -> None:
    values = (np.random.default_rng(7).standard_normal((4, columns)) * [[1], [3], [0.5], [0]] + mean).astype(np.float32)
    inputs = {
        "sums": np.zeros((4, columns), np.int32),
        "row_scale": np.ones(4, np.float32),
        "channel_scale": np.ones(columns, np.float32),
        "residual": values,
    }
    inputs |= norm_of(columns)
    for epsilon in (1e-12, 1e-5):
        [output] = run("DequantizeProduct", inputs, {"epsilon": epsilon})
        np.testing.assert_allclose(output, dequantize_product(**inputs, epsilon=epsilon), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("columns", [5, 100])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_row_that_is_not_finite_is_none_when_normalized(value: float, columns: int) -> None:
    inputs = product_of(4, columns, residual=True) | norm_of(columns)
    [clean] = run("DequantizeProduct", inputs, {})
    inputs["residual"][1, columns - 1] = value
    [hostile] = run("DequantizeProduct", inputs, {})
    assert np.isnan(hostile[1]).all()
    assert same_bits([hostile[[0, 2, 3]]], [clean[[0, 2, 3]]])


@pytest.mark.parametrize("name", ["norm_weight", "norm_bias"])
def test_half_a_norm_is_refused(name: str) -> None:
    inputs = product_of(4, 50, residual=True) | norm_of(50)
    del inputs[name]
    with pytest.raises(InvalidArgument, match="norm_weight and norm_bias must be there together or not at all"):
        run("DequantizeProduct", inputs, {})


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelu_is_off_by_less_than_a_ten_millionth_and_its_last_place(activation: str) -> None:
    values = np.concatenate(
        [np.linspace(-14, 14, 40001), np.geomspace(1e-40, 1e30, 2001), -np.geomspace(1e-40, 1e30, 2001), [0.0]]
    ).astype(np.float32)
    inputs = {
        "sums": np.ones((1, len(values)), np.int32),
        "row_scale": np.ones(1, np.float32),
        "channel_scale": values,
    }
    [[output]] = run("DequantizeProduct", inputs, {"activation": activation})
    expected = ACTIVATIONS[activation](values.astype(float))
    assert (np.abs(output - expected) <= 7e-8 + np.abs(expected) * 2**-24).all()
    tail = (values < -1) & (values > -6)
    assert (np.abs(output[tail] / expected[tail] - 1) < 1e-3).all(), "what large negative numbers leave is kept"


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [0, 1, 5, 90])
@pytest.mark.parametrize("columns", [1, 17, 400, 3072])
def test_requantizing_gives_the_bits_of_both_nodes(count: int, columns: int, activation: str) -> None:
    inputs = product_of(count, columns, residual=False)
    [real] = run("DequantizeProduct", inputs, {"activation": activation})
    together = run("RequantizeProduct", inputs, {"activation": activation})
    assert same_bits(together, run("QuantizeRows", {"rows": real}, {}))
    stands_for, expected = (
        (quantized.astype(float) - ZERO_POINT) * scale[:, None]
        for quantized, scale in (together, requantize_product(**inputs, activation=activation))
    )
    assert (np.abs(stands_for - expected) <= together[1][:, None] * 1.01 + 1e-7).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["QuantizeRows", "DequantizeProduct", "RequantizeProduct"])
def test_a_rows_bits_depend_on_that_row_alone(name: str, threads: int) -> None:
    """Alone, in another order, and on any number of threads, over more than one task."""
    count, columns = 300, 333
    by_row = {"rows": rows_of(count, columns)} if name == "QuantizeRows" else product_of(count, columns, False)
    by_row |= norm_of(columns) if name == "DequantizeProduct" else {}
    attributes = {} if name == "QuantizeRows" else {"activation": "gelu"}
    fixed = {key: value for key, value in by_row.items() if len(value) != count}
    together = run(name, by_row, attributes, threads)
    order = np.random.default_rng(0).permutation(count)
    for index in ([0], [150], [299], order, []):
        some = {key: by_row[key][np.asarray(index, int)] if key not in fixed else by_row[key] for key in by_row}
        assert same_bits(run(name, some, attributes, threads), [y[np.asarray(index, int)] for y in together])


@pytest.mark.parametrize("name", ["DequantizeProduct", "RequantizeProduct"])
def test_a_scale_that_is_not_a_number_makes_its_row_none(name: str) -> None:
    inputs = product_of(4, 50, residual=False)
    clean = run(name, inputs, {"activation": "gelu"})
    inputs["row_scale"][1] = np.nan
    hostile = run(name, inputs, {"activation": "gelu"})
    assert np.isnan(hostile[-1][1]).all()
    assert same_bits([y[[0, 2, 3]] for y in hostile], [y[[0, 2, 3]] for y in clean])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_a_value_that_overflows_is_told_and_a_large_one_is_kept(activation: str) -> None:
    inputs = {
        "sums": np.array([[2, -2, 1, -1]] * 5, np.int32),
        "row_scale": np.full(5, 3e38, np.float32),
        "channel_scale": np.ones(4, np.float32),
    }
    for residual in (False, True):
        more = {"residual": np.ones((5, 4), np.float32)} if residual else {}
        [output] = run("DequantizeProduct", inputs | more, {"activation": activation})
        assert np.isnan(output[:, :2]).all()
        assert (output[:, 2:] == np.array([3e38, residual], np.float32)).all()
    quantized, scale = run("RequantizeProduct", inputs, {"activation": activation})
    assert np.isnan(scale).all()
    assert not quantized.any()


@pytest.mark.parametrize("name", ["DequantizeProduct", "RequantizeProduct"])
def test_sizes_that_do_not_fit_are_refused(name: str) -> None:
    whole = name == "DequantizeProduct"
    inputs = product_of(4, 50, residual=whole) | (norm_of(50) if whole else {})
    for key, value in inputs.items():
        for axis in range(value.ndim):
            wrong = inputs | {key: value.take(range(value.shape[axis] - 1), axis)}
            blamed = "row_scale" if axis == 0 else "channel_scale"
            with pytest.raises(InvalidArgument, match=f"{name}: {blamed if key == 'sums' else key} has size"):
                run(name, wrong, {})


def digest() -> str:
    """Of every output on odd sizes."""
    total = hashlib.sha256()
    for columns in WIDTHS:
        for y in run("QuantizeRows", {"rows": rows_of(20, columns)}, {}):
            total.update(y.tobytes())
        for activation in ACTIVATIONS:
            inputs = product_of(6, columns, residual=False)
            for name in ("DequantizeProduct", "RequantizeProduct"):
                for y in run(name, inputs, {"activation": activation}):
                    total.update(y.tobytes())
            for y in run("DequantizeProduct", inputs | norm_of(columns), {"activation": activation}):
                total.update(y.tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("lower", ISAS[: ISAS.index(isa())])
def test_instruction_sets_give_the_same_bits(lower: str) -> None:
    done = in_process("from test_quantized_rows import digest; print(digest())", ATTENUATOR_ISA=lower)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == digest()
