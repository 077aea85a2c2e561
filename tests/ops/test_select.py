"""TokenSelect against its NumPy reference, and what is chosen at the edges of what floats hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from harness import Array, offsets, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.kept_lengths.reference import kept_lengths
from attenuator.ops.select.reference import select_places, token_select

LENGTHS = (3, 0, 1, 300, 0, 17, 2, 129)
# From the largest to the smallest, equal ones side by side.
FALLING: tuple[tuple[float, ...], ...] = (
    (np.nan, -np.nan),
    (np.inf,),
    (3.4e38,),
    (1.0, 1.0),
    (1e-38,),
    (1e-45,),
    (0.0, -0.0),
    (-1e-45,),
    (-1.0,),
    (-np.inf,),
)


def batch(lengths: Sequence[int], keep: float, channels: int = 5, seed: int = 0) -> dict[str, Array]:
    """Random rows and importances, of which each sequence keeps a share."""
    rng = np.random.default_rng(seed)
    starts = offsets(lengths)
    return {
        "rows": rng.standard_normal((sum(lengths), channels)).astype(np.float32),
        "importance": rng.random(sum(lengths)).astype(np.float32),
        "cu_seqlens": starts,
        "kept_cu_seqlens": kept_lengths(starts, np.full(len(lengths), keep, np.float32)),
    }


def select(inputs: dict[str, Array], threads: int = 1) -> list[Array]:
    return run("select", inputs, {}, threads)


def one(importance: Sequence[float] | Array, count: int) -> list[int]:
    """The places that one sequence keeps."""
    importance = np.array(importance, np.float32)
    rows = np.arange(len(importance), dtype=np.float32)[:, None]
    kept, places = run(
        "select",
        {
            "rows": rows,
            "importance": importance,
            "cu_seqlens": offsets([len(importance)]),
            "kept_cu_seqlens": offsets([count]),
        },
        {},
    )
    np.testing.assert_array_equal(kept[:, 0], places)
    return [int(place) for place in places]


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("channels", [1, 7, 33, 768])
def test_equals_the_reference_bit_for_bit(channels: int, keep: float) -> None:
    inputs = batch(LENGTHS, keep, channels)
    for actual, expected in zip(select(inputs), token_select(**inputs), strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_ties_go_to_the_lower_position(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    for length in (2, 9, 64, 257):
        importance = rng.integers(0, distinct, length).astype(np.float32)
        for count in {1, 2, length // 2, length - 1, length}:
            expected = select_places(importance, count)
            assert one(importance, count) == expected.tolist()
    assert one([0.0] * 6, 3) == [0, 1, 2]
    assert one([0, 2, 7, 2, 2, 7], 4) == [0, 1, 2, 5]


def test_the_first_row_is_kept_whatever_it_matters() -> None:
    assert one([-np.inf, 1, 2, 3], 1) == [0]
    assert one([-np.inf, np.nan, 2, np.inf], 2) == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_any_number_has_its_place(seed: int) -> None:
    """NaN above infinity, both zeros equal, denormal numbers between; of equal ones the lower position."""
    rng = np.random.default_rng(seed)
    ranked = [(rank, value) for rank, values in enumerate(FALLING) for value in values]
    order = rng.permutation(len(ranked))
    shuffled = [ranked[index] for index in order]
    best_first = sorted(range(len(shuffled)), key=lambda position: (shuffled[position][0], position))
    importance = [0.0, *(value for _, value in shuffled)]
    for count in range(1, len(importance) + 1):
        assert one(importance, count) == sorted([0, *(position + 1 for position in best_first[: count - 1])])


def test_every_kind_of_nan_counts_as_largest() -> None:
    bits = np.array([0, 0x7F800000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    assert one(bits.view(np.float32), 3) == [0, 2, 3]
    assert one(bits.view(np.float32), 5) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -np.inf, 1e-42])
def test_rows_are_copied_whatever_they_hold(hostile: float) -> None:
    inputs = batch(LENGTHS, 0.4)
    inputs["rows"][::3] = hostile
    inputs["rows"].view(np.uint32)[1::3, 0] = 0x7FA00123  # a signalling NaN with a payload
    kept, places = select(inputs)
    assert kept.tobytes() == inputs["rows"][places].tobytes()


def test_keeping_all_is_the_identity() -> None:
    inputs = batch(LENGTHS, 1.0)
    inputs["importance"][::2] = np.nan
    kept, places = select(inputs)
    assert kept.tobytes() == inputs["rows"].tobytes()
    np.testing.assert_array_equal(places, np.arange(sum(LENGTHS)))


def test_a_larger_share_keeps_what_a_smaller_one_keeps() -> None:
    previous: set[int] = set()
    for keep in np.linspace(0.05, 1, 40):
        _, places = select(batch((1, 77, 300, 0, 12), float(keep)))
        assert previous <= set(places)
        assert (np.diff(places) > 0).all()
        previous = set(places)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads: int) -> None:
    inputs = batch((1, 2000, 3, 0, 900), 0.5, channels=96)
    for alone, together in zip(select(inputs), select(inputs, threads), strict=True):
        assert alone.tobytes() == together.tobytes()


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0), (1,), (1, 0, 1)])
@pytest.mark.parametrize("channels", [0, 3])
def test_smallest_batches(lengths: tuple[int, ...], channels: int) -> None:
    kept, places = select(batch(lengths, 0.05, channels))
    assert kept.shape == (sum(lengths), channels)
    assert places.tolist() == list(range(sum(lengths)))


def merging(
    lengths: Sequence[int], keep: float, channels: int = 5, already: Sequence[int] = (), seed: int = 0
) -> dict[str, Array]:
    """The same, with a mean for the others; `already` rows were merged into the last one of each sequence before."""
    inputs = batch(lengths, keep, channels, seed)
    starts, shares = inputs["cu_seqlens"], np.full(len(lengths), keep, np.float32)
    more = [length + (length and merged) for length, merged in zip(lengths, already or [0] * len(lengths), strict=True)]
    return inputs | {
        "kept_cu_seqlens": kept_lengths(starts, shares, merge="mean"),
        "unmerged_cu_seqlens": offsets(more),
    }


@pytest.mark.parametrize("already", [(), (0, 0, 5, 1, 0, 40, 0, 7)], ids=["first", "again"])
@pytest.mark.parametrize("keep", [0.05, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("channels", [1, 7, 33, 768])
def test_merged_rows_equal_the_reference(channels: int, keep: float, already: Sequence[int]) -> None:
    inputs = merging(LENGTHS, keep, channels, already)
    (kept, places), (expected, chosen) = select(inputs), token_select(**inputs)
    np.testing.assert_array_equal(places, chosen)
    np.testing.assert_allclose(kept, expected, rtol=1e-6, atol=1e-7)
    means = np.setdiff1d(inputs["kept_cu_seqlens"][1:] - 1, -1)
    single = np.setdiff1d(np.arange(len(kept)), means)
    assert kept[single].tobytes() == expected[single].tobytes(), "the others are copies"


def test_merging_in_steps_is_the_mean_of_all_that_was_left_out() -> None:
    """Whatever was merged before counts for as many rows as it stands for, and is never kept as a row."""
    rng = np.random.default_rng(0)
    rows, importance = rng.standard_normal((90, 8)).astype(np.float32), rng.random(90).astype(np.float32)
    starts = now = offsets([90])
    left, sums, weights = rows, rows.astype(np.float64).sum(axis=0), importance
    for count in (60, 21, 5, 2):
        kept = offsets([count])
        inputs = {"rows": left, "importance": weights, "cu_seqlens": now}
        left, places = select(inputs | {"kept_cu_seqlens": kept, "unmerged_cu_seqlens": starts})
        weights, now = np.append(weights[places[:-1]], np.float32(2.0)), kept  # the mean matters most, yet is merged
        total = left[:-1].astype(np.float64).sum(axis=0) + left[-1].astype(np.float64) * (90 - (count - 1))
        np.testing.assert_allclose(total, sums, atol=2e-5)
    np.testing.assert_array_equal(left[0], rows[0])


def test_nothing_is_merged_where_every_row_goes_on() -> None:
    inputs = merging(LENGTHS, 1.0, already=(0, 0, 5, 1, 0, 40, 0, 7))
    kept, places = select(inputs)
    assert kept.tobytes() == inputs["rows"].tobytes()
    np.testing.assert_array_equal(places, np.arange(sum(LENGTHS)))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"kept_cu_seqlens": [0, 1, 3]},
            r"kept_cu_seqlens\[1\] - kept_cu_seqlens\[0\] is 1, must be in \[2, 4\], since sequence 0 has 4 rows",
        ),
        (
            {"unmerged_cu_seqlens": [0, 4, 5]},
            r"unmerged_cu_seqlens\[2\] - unmerged_cu_seqlens\[1\] is 1, must be at least 2, the rows of sequence 1",
        ),
        ({"unmerged_cu_seqlens": [0, 9]}, r"unmerged_cu_seqlens has size 2 on axis 0, must be 3 \(as cu_seqlens has\)"),
    ],
)
def test_refusals_where_rows_are_merged(changed: dict[str, list[int]], sentence: str) -> None:
    inputs = merging((4, 2), 1.0) | {name: np.array(value, np.int32) for name, value in changed.items()}
    with pytest.raises(InvalidArgument, match=f"TokenSelect: {sentence}"):
        select(inputs)


REFUSED = {
    "more than there are": ([0, 3, 6, 6], r"kept_cu_seqlens\[2\] - kept_cu_seqlens\[1\] is 3, must be in \[1, 2\]"),
    "none of some": ([0, 3, 3, 3], r"kept_cu_seqlens\[2\] - kept_cu_seqlens\[1\] is 0, must be in \[1, 2\]"),
    "some of none": ([0, 3, 5, 6], r"kept_cu_seqlens\[3\] - kept_cu_seqlens\[2\] is 1, must be in \[0, 0\]"),
    "falling": ([0, 3, 2, 2], r"kept_cu_seqlens\[2\] is 2, must not be below kept_cu_seqlens\[1\] = 3"),
    "not from 0": ([1, 3, 5, 5], r"kept_cu_seqlens\[0\] is 1, must be 0"),
    "a sequence too few": ([0, 3, 5], r"kept_cu_seqlens has size 3 on axis 0, must be 4 \(as cu_seqlens has\)"),
    "below any row": ([0, -(2**31), 2**31 - 1, 2**31 - 1], r"kept_cu_seqlens\[1\] is -2147483648, must not be below"),
}


@pytest.mark.parametrize(("kept", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals(kept: list[int], sentence: str) -> None:
    inputs = batch((4, 2, 0), 1.0) | {"kept_cu_seqlens": np.array(kept, np.int32)}
    with pytest.raises(InvalidArgument, match=f"TokenSelect: {sentence}"):
        select(inputs)


def test_importance_needs_a_value_for_each_row() -> None:
    inputs = batch((4, 2), 0.5)
    inputs["importance"] = inputs["importance"][:-1]
    with pytest.raises(InvalidArgument, match="TokenSelect: importance has size 5 on axis 0, must be 6"):
        select(inputs)
