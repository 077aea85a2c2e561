"""TokenSelect's CUDA kernels on the test device: the CPU's choice, and the rows' own bits."""

from collections.abc import Sequence

import numpy as np
import pytest
from harness import Array, offsets, run
from harness_cuda import DATA_TYPES, run_on_device

from attenuator.ops.select.reference import token_select

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


def merging(inputs: dict[str, Array], more: Sequence[int]) -> dict[str, Array]:
    """The same, with a mean for the rows left out; so many rows were merged into the last ones before."""
    lengths = np.diff(inputs["cu_seqlens"])
    return inputs | {"unmerged_cu_seqlens": offsets([int(n) + extra for n, extra in zip(lengths, more, strict=True)])}


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
    merged = [1, 2, 0, 3, 3] * 120
    check(merging(batch(lengths, merged), [0, 4, 0, 1, 0] * 120), "float")


@pytest.mark.parametrize("more", [(0, 0, 0, 0, 0, 0), (5, 0, 3, 40, 0, 1)], ids=["first", "again"])
@pytest.mark.parametrize("channels", [1, 8, 257, 520])
def test_means_have_the_bits_of_the_cpu(channels: int, more: Sequence[int]) -> None:
    inputs = merging(batch((3, 0, 1, 600, 9, 33), (2, 0, 1, 130, 9, 2), channels), more)
    inputs["rows"] = np.random.default_rng(channels).standard_normal(inputs["rows"].shape).astype(np.float32)
    outputs = zip(run_on_device("select", inputs, {}), run("select", inputs, {}), strict=True)
    assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in outputs)


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e4])
def test_means_of_half_types_equal_the_reference(scale: float, data: str) -> None:
    """Of any size: those that only a denormal number holds, and those at a type's upper end."""
    rng = np.random.default_rng(1)
    inputs = merging(batch((40, 300), (2, 7), channels=300), (9, 0))
    narrow = (rng.standard_normal(inputs["rows"].shape) * scale).astype(DATA_TYPES[data])
    kept, places = run_on_device("select", inputs | {"rows": narrow.astype(np.float32)}, {}, data)
    expected, chosen = token_select(**inputs | {"rows": narrow})
    np.testing.assert_array_equal(places, chosen)
    np.testing.assert_array_equal(kept, expected.astype(np.float32))


@pytest.mark.parametrize(("data", "step"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_means_of_half_types_are_rounded_once(data: str, step: float) -> None:
    """Half a step and a little more, which float32 does not hold: rounded by way of it, the mean would be 1."""
    inputs = merging(batch((5,), (2,), channels=1), (0,))
    for sign in (1, -1):
        inputs["rows"] = sign * np.array([[7, 2, 2, 2 * step, 2.0**-24]], np.float32).T
        kept, _ = run_on_device("select", inputs, {}, data)
        assert kept[:, 0].tolist() == [sign * 7, sign * (1 + step)]


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_makes_the_mean_so_of_its_sequence_alone(hostile: float) -> None:
    inputs = merging(batch((30, 30), (5, 5)), (0, 0))
    dropped = np.setdiff1d(np.arange(30), token_select(**inputs)[1][:4])
    inputs["rows"][dropped[3], 2] = hostile
    check(inputs, "float")


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
        check(merging(inputs, (8, 0)), "float")
