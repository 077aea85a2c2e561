"""TokenSelect's CUDA kernels on the test device: the CPU's choice, and the rows' own bits."""

from collections.abc import Sequence

import numpy as np
import pytest
from harness import Array, offsets, run
from harness_cuda import DATA_TYPES, run_on_device

ORDERS = ("forward", "backward", "1")
EDGES = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 0.0, -0.0, 1.0, -1.0, 3.4e38], np.float32)


def batch(lengths: Sequence[int], kept: Sequence[int], channels: int = 8, seed: int = 0) -> dict[str, Array]:
    """Rows that every element type holds, and random importances."""
    rng = np.random.default_rng(seed)
    return {
        "rows": rng.integers(-100, 100, (sum(lengths), channels)).astype(np.float32),
        "importance": rng.standard_normal(sum(lengths)).astype(np.float32),
        "cu_seqlens": offsets(lengths),
        "kept_cu_seqlens": offsets(kept),
    }


def check(inputs: dict[str, Array], data: str) -> None:
    kept, places = run_on_device("select", inputs, {}, data)
    expected_kept, expected_places = run("select", inputs, {})
    assert (places.dtype, places.tolist()) == (expected_places.dtype, expected_places.tolist())
    np.testing.assert_array_equal(kept, expected_kept)


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("channels", [1, 3, 8, 24, 260, 1030])
def test_computes_what_the_cpu_computes(channels: int, data: str) -> None:
    check(batch((3, 0, 1, 70, 9, 33), (2, 0, 1, 30, 9, 1), channels), data)


@pytest.mark.parametrize("length", [2, 255, 256, 257, 258, 513, 1000])
def test_lengths_around_a_blocks_threads(length: int) -> None:
    for count in sorted({1, 2, length // 2, length - 1, length}):
        check(batch((length, 5), (count, 2), seed=count), "float")


@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_ties_go_to_the_lower_position_across_steps(distinct: int) -> None:
    inputs = batch((700,), (1,))
    inputs["importance"] = np.random.default_rng(distinct).integers(0, distinct, 700).astype(np.float32)
    for count in (2, 255, 300, 520, 699):
        check(inputs | {"kept_cu_seqlens": offsets([count])}, "float16")


def test_importances_that_differ_in_their_last_digit_alone() -> None:
    inputs = batch((600,), (1,))
    bits = np.random.default_rng(1).permutation(600).astype(np.uint32) + np.uint32(0x3F800000)
    inputs["importance"] = bits.view(np.float32)
    for count in (2, 100, 345, 599):
        check(inputs | {"kept_cu_seqlens": offsets([count])}, "float")


def test_any_number_has_its_place() -> None:
    rng = np.random.default_rng(4)
    for count in range(1, 41, 3):
        inputs = batch((40, 40), (count, 41 - count))
        inputs["importance"] = rng.choice(EDGES, 80)
        check(inputs, "bfloat16")


def test_bits_are_copied_whatever_they_mean() -> None:
    inputs = batch((50,), (20,), channels=8)
    inputs["rows"].view(np.uint32)[...] = np.random.default_rng(2).integers(0, 2**32, (50, 8), np.uint32)
    kept, places = run_on_device("select", inputs, {}, "float")
    assert kept.tobytes() == inputs["rows"][places].tobytes()


def test_more_sequences_than_a_launch_takes() -> None:
    lengths = [1, 2, 0, 5, 3] * 120
    kept = [1, 1, 0, 3, 3] * 120
    check(batch(lengths, kept), "float")


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0)])
@pytest.mark.parametrize("channels", [0, 3])
def test_nothing_to_do(lengths: tuple[int, ...], channels: int) -> None:
    kept, places = run_on_device("select", batch(lengths, lengths, channels), {})
    assert (kept.shape, places.shape) == ((0, channels), (0,))


def test_any_order_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = batch((300, 20), (140, 7))
    for order in ORDERS:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        check(inputs, "float")
