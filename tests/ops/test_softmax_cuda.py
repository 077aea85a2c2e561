"""SoftmaxAttention's CUDA kernels on the test device, against the CPU operator and the NumPy reference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from cases import CASES as ALL_CASES
from cases import Case, make_inputs, same_bits, split, take
from harness import Array, AttributeValue, offsets, run
from harness_cuda import DATA_TYPES, library_path, run_on_device

from attenuator.errors import EngineError
from attenuator.ops.softmax.reference import softmax_attention

# Importance has tests of its own; products are in float whatever `int8_products` is.
OTHERS = {"importance", "int8_products"}
CASES = [case for case in ALL_CASES if case.operator.key == "softmax" and not OTHERS & case.attributes.keys()]
# Rounding of the type: of the probabilities and of the output, for values of about 1.
TOLERANCE = {"float": 5e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
ORDERS = ("forward", "backward", "1", "2")


def attention_inputs(
    lengths: Sequence[int], heads: int, head_dim: int, value_dim: int, first: bool = False, seed: int = 0
) -> dict[str, Array]:
    """Gaussian rows."""
    rng = np.random.default_rng([seed, heads, head_dim, *lengths])
    tokens = sum(lengths)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "query": normal(len(lengths) if first else tokens, heads * head_dim),
        "key": normal(tokens, heads * head_dim),
        "value": normal(tokens, heads * value_dim),
        "cu_seqlens": offsets(lengths),
    }


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """The inputs as the device sees them, in float32."""
    return {
        name: value.astype(DATA_TYPES[data]).astype(np.float32) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }


def device(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str = "float") -> Array:
    return run_on_device("softmax", inputs, attributes, data)[0]


def check(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str = "float") -> None:
    """Compares with the reference, and in float with the CPU operator."""
    output = device(inputs, attributes, data)
    expected = softmax_attention(**rounded(inputs, data), **attributes)  # type: ignore[arg-type]
    size = max(1.0, np.abs(expected).max(initial=0))
    assert np.abs(output - expected).max(initial=0) < TOLERANCE[data] * size
    if data == "float":
        np.testing.assert_allclose(output, run("softmax", inputs, attributes)[0], atol=5e-6 * size)


def test_the_library_is_built() -> None:
    assert Path(library_path()).is_file(), f"{library_path()} is missing: `make test` builds it"


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_variant(case: Case, data: str) -> None:
    check(make_inputs(case, (17, 0, 1, 70, 5)), case.attributes, data)


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize(
    ("head_dim", "value_dim"),
    [(8, 8), (9, 31), (32, 32), (33, 17), (64, 64), (80, 80), (128, 128), (100, 256), (255, 12), (256, 256)],
)
def test_every_size_of_head(head_dim: int, value_dim: int, data: str) -> None:
    check(attention_inputs((40, 1, 67), 1, head_dim, value_dim), {"num_heads": 1}, data)


@pytest.mark.parametrize("data", ["float", "float16"])
@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("window", [1, 63, 64, 65, 130, 299, 2**30])
def test_windows(window: int, global_tokens: int, data: str) -> None:
    inputs = attention_inputs((300, 3, 0), 1, 16, 16)
    check(inputs, {"num_heads": 1, "window": window, "global_tokens": global_tokens}, data)


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (6, 0), (6, 1)])
def test_first_row(window: int, global_tokens: int, data: str) -> None:
    inputs = attention_inputs((0, 1, 300, 5, 0, 257), 2, 24, 40, first=True)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "window": window, "global_tokens": global_tokens}
    check(inputs, attributes | {"queries": "first"}, data)
    assert not device(inputs, attributes | {"queries": "first"}, data)[[0, 4]].any()


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("head_dim", [32, 64, 20])
def test_tiles_and_key_blocks(head_dim: int, data: str) -> None:
    """Lengths on both sides of every border."""
    check(attention_inputs((127, 128, 129, 64, 193), 1, head_dim, head_dim), {"num_heads": 1, "scale": -0.4}, data)


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_nothing_to_do(lengths: tuple[int, ...], queries: str, data: str) -> None:
    inputs = attention_inputs(lengths, 2, 8, 8, queries == "first")
    output = device(inputs, {"num_heads": 2, "queries": queries}, data)
    assert output.shape == (len(lengths) if queries == "first" else 0, 16)
    assert not output.any()


def test_more_sequences_than_a_launch_takes() -> None:
    lengths = [1, 2, 0, 3] * 75
    check(attention_inputs(lengths, 1, 8, 8), {"num_heads": 1}, "float16")
    check(attention_inputs(lengths, 1, 8, 8, first=True), {"num_heads": 1, "queries": "first"}, "float")


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sequence_does_not_depend_on_its_batch(case: Case, data: str) -> None:
    inputs = make_inputs(case, (17, 70, 1, 33), seed=3)
    together = split(case, run_on_device("softmax", inputs, case.attributes, data), inputs)
    for order in ([2, 1], [1, 3, 0, 1]):
        some = take(case, inputs, order)
        apart = split(case, run_on_device("softmax", some, case.attributes, data), some)
        for place, b in enumerate(order):
            assert same_bits(apart[place], together[b])


@pytest.mark.parametrize("data", DATA_TYPES)
def test_any_order_of_threads(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, odd = attention_inputs((70, 9), 1, 32, 32), attention_inputs((70, 9), 2, 20, 12)
    band: dict[str, AttributeValue] = {"num_heads": 2, "window": 9, "global_tokens": 1}
    results = []
    for order in ORDERS:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        results.append([device(whole, {"num_heads": 1}, data), device(odd, band, data)])
    assert all(same_bits(results[0], other) for other in results[1:])


# One key, an odd and an even number of blocks of keys, windows that leave blocks out, and key 0 in a block of its own.
BLOCKS_OF_KEYS: list[tuple[tuple[int, ...], int, int]] = [
    ((1, 64, 65), 0, 0),
    ((193, 0, 128), 0, 0),
    ((300,), 30, 0),
    ((300, 2), 30, 1),
]


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize(("lengths", "window", "global_tokens"), BLOCKS_OF_KEYS)
def test_a_second_buffer_of_keys_and_values_changes_no_bit(
    lengths: tuple[int, ...],
    window: int,
    global_tokens: int,
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two blocks of threads and two buffers each, at 64 columns, fit the shared memory of sm_80, not that of sm_86."""
    log = tmp_path / "launches"
    monkeypatch.setenv("ATTENUATOR_ON_HOST_LAUNCHES", str(log))
    inputs = attention_inputs(lengths, 1, 64, 64)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "window": window, "global_tokens": global_tokens}
    limits, results = (99 * 1024, 163 * 1024), []
    for limit in limits:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_SHARED", str(limit))
        for order in ORDERS:
            monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
            results.append(device(inputs, attributes, data))
    launches = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    few, many = ({asked for _, _, asked, most in launches if most == str(limit)} for limit in limits)
    assert few != many
    assert all(same_bits([other], [results[0]]) for other in results[1:])
    expected = softmax_attention(**rounded(inputs, data), **attributes)  # type: ignore[arg-type]
    assert np.abs(results[0] - expected).max() < TOLERANCE[data]


@pytest.mark.parametrize("head_dim", [32, 128])
@pytest.mark.parametrize(("lengths", "window", "global_tokens"), BLOCKS_OF_KEYS)
def test_blocks_of_keys_in_two_buffers_come_in_their_order(
    lengths: tuple[int, ...], window: int, global_tokens: int, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = attention_inputs(lengths, 1, head_dim, head_dim)
    for order in ORDERS:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        check(inputs, {"num_heads": 1, "window": window, "global_tokens": global_tokens}, "float16")


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("queries", ["all", "first"])
def test_where_non_finite_rows_give_nan(data: str, queries: str) -> None:
    inputs = attention_inputs((30, 20, 10, 7), 1, 8, 8, queries == "first")
    inputs["query"][0, 2] = np.nan
    inputs["key"][30 + 8, 1] = np.inf
    inputs["value"][50 + 9, 3] = np.inf
    output = device(inputs, {"num_heads": 1, "queries": queries}, data)
    nan = np.isnan(output).any(axis=1)
    # A score of +inf makes its row NaN, one of -inf gives the key no weight.
    if queries == "first":
        assert nan[0]
        assert nan[1] == (inputs["query"][1, 1] > 0)
        assert not nan[3]
        assert not np.isfinite(output[2, 3])
    else:
        assert nan[0]
        assert not nan[1:30].any()
        assert not nan[60:].any()
        assert (nan[30:50] == (inputs["query"][30:50, 1] > 0)).all()
        assert not np.isfinite(output[50:60, 3]).any()
        assert np.isfinite(output[60:]).all()


@pytest.mark.parametrize("data", DATA_TYPES)
def test_nan_beyond_the_window_stays_near(data: str) -> None:
    """Rows of the same block may see it; those more than a block beyond the window do not."""
    inputs = attention_inputs((700,), 1, 8, 8)
    inputs["value"][0] = np.nan
    nan = np.isnan(device(inputs, {"num_heads": 1, "window": 10}, data)).any(axis=1)
    assert nan[:11].all()
    assert not nan[128:].any()


def test_scores_far_beyond_the_range_of_exp() -> None:
    inputs = attention_inputs((70, 9), 1, 16, 16)
    inputs["key"][::7] *= 1e15
    output = device(inputs, {"num_heads": 1})
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, run("softmax", inputs, {"num_heads": 1})[0], atol=5e-6)


@pytest.mark.parametrize("data", DATA_TYPES)
def test_rows_that_are_not_aligned(data: str) -> None:
    """Heads that start where no 16 bytes do are read element by element."""
    check(attention_inputs((35,), 3, 33, 9), {"num_heads": 3}, data)


def test_refusals_are_those_of_the_cpu() -> None:
    inputs = attention_inputs((3, 4), 2, 8, 8)
    with pytest.raises(EngineError, match="SoftmaxAttention: value has size 6 on axis 0, must be 7"):
        device(inputs | {"value": inputs["value"][:6]}, {"num_heads": 2})
    with pytest.raises(EngineError, match="SoftmaxAttention: attribute scale is inf, must be finite"):
        device(inputs, {"num_heads": 2, "scale": float("inf")})


def test_bfloat16_keeps_the_range_of_float() -> None:
    inputs = attention_inputs((20,), 1, 16, 16)
    inputs["value"] *= np.float32(1e30)
    expected = softmax_attention(**rounded(inputs, "bfloat16"), num_heads=1)
    assert np.abs(device(inputs, {"num_heads": 1}, "bfloat16") / expected - 1).mean() < 0.05
