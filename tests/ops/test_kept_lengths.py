"""KeptLengths against its NumPy reference, and what its formula promises."""

import math

import numpy as np
import pytest
from harness import Array, offsets, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.kept_lengths.reference import kept_lengths
from attenuator.ops.kept_lengths.rule import DROP
from attenuator.ops.kept_lengths.spec import SPEC

EXPONENTS = (1.0, 0.5, 1 / 3, 0.25, 0.0)
MERGES = next(item.choices for item in SPEC.attributes if item.name == "merge")


def kept(lengths: list[int], keep: list[float] | Array, exponent: float = 1.0, merge: str = DROP) -> list[int]:
    """Lengths after the selection."""
    inputs = {"cu_seqlens": offsets(lengths), "keep": np.asarray(keep, np.float32)}
    [output] = run("kept_lengths", inputs, {"exponent": exponent, "merge": merge})
    assert output.dtype == np.int32
    assert output[0] == 0
    return [int(length) for length in np.diff(output)]


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_equals_the_reference(exponent: float, merge: str) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.choice([0, 1, 2, 3, 7, 50, 511, 512, 4096, 100_000], 2000)
    keep = rng.uniform(0.05, 1, 2000).astype(np.float32)
    inputs = {"cu_seqlens": offsets(lengths), "keep": keep}
    [output] = run("kept_lengths", inputs, {"exponent": exponent, "merge": merge})
    np.testing.assert_array_equal(output, kept_lengths(**inputs, exponent=exponent, merge=merge))


def test_a_share_of_decimal_digits_keeps_what_it_says() -> None:
    """Every hundredth, of lengths at which it is a whole number of rows: its rounding to float32 adds none."""
    lengths, keep, expected = [], [], []
    for hundredths in range(5, 101):
        for length in (100, 500, 2000, 65_500):
            lengths.append(length)
            keep.append(hundredths / 100)
            expected.append(length * hundredths // 100)
    assert kept(lengths, keep) == expected


def test_shares_round_up_and_leave_at_least_one_row() -> None:
    assert kept([10, 11, 3, 1, 0, 2], [0.3, 0.5, 0.05, 0.05, 0.05, 0.5]) == [3, 6, 1, 1, 0, 1]


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_exact_value_keeps_every_row_of_any_length(exponent: float) -> None:
    lengths = [0, 1, 2, 2**22, 2**23 + 1, 2**30]
    assert kept(lengths, [1.0] * 6, exponent) == lengths


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("length", [1, 2, 17, 300, 70_000])
def test_a_larger_share_never_keeps_fewer(length: int, exponent: float) -> None:
    keep = np.append(np.linspace(0.05, 1, 999, dtype=np.float32), np.float32(1)).clip(np.float32(0.05), 1)
    lengths = kept([length] * len(keep), keep, exponent)
    assert lengths == sorted(lengths)
    assert lengths[0] >= 1
    assert lengths[-1] == length


@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_exponents_that_sum_to_1_leave_the_share(steps: int) -> None:
    """However many selections there are: a row more for each, that of rounding up."""
    lengths, keep = [1, 5, 40, 333, 2000], [0.5, 0.2, 0.3, 0.7, 0.05]
    after = lengths
    for _ in range(steps):
        after = kept(after, keep, 1 / steps)
    least = [math.ceil(length * share - 1e-3) for length, share in zip(lengths, keep, strict=True)]
    assert all(0 <= rows - low <= steps for rows, low in zip(after, least, strict=True))


def test_a_mean_is_one_row_more_where_it_spares_any() -> None:
    lengths = [10, 11, 4, 3, 2, 1, 0, 5]
    keep = [0.3, 0.5, 0.8, 0.05, 0.05, 0.05, 0.05, 0.6]
    assert kept(lengths, keep) == [3, 6, 4, 1, 1, 1, 0, 3]
    assert kept(lengths, keep, merge="mean") == [4, 7, 4, 2, 2, 1, 0, 4]
    assert kept(lengths, [1.0] * 8, merge="mean") == lengths


def test_no_sequences() -> None:
    assert kept([], []) == []
    assert kept([0, 0], [0.5, 1.0]) == [0, 0]


REFUSED = {
    "offsets fall": ([0, 5, 4], [0.5, 0.5], r"cu_seqlens\[2\] is 4, must not be below cu_seqlens\[1\] = 5"),
    "offsets start elsewhere": ([1, 5], [0.5], r"cu_seqlens\[0\] is 1, must be 0"),
    "no offsets": ([], [], "cu_seqlens is empty, must have one value more than there are sequences"),
    "a share too few": ([0, 5, 9], [0.5], "keep has 1 value for 2 sequences, must have one value per sequence"),
    "a share below": ([0, 5, 9], [0.5, 0.04], r"keep\[1\] is 0.04, must be in \[0.05, 1\]"),
    "a share above": ([0, 5, 9], [1.5, 0.5], r"keep\[0\] is 1.5, must be in \[0.05, 1\]"),
    "a share not a number": ([0, 5], [math.nan], r"keep\[0\] is nan, must be in \[0.05, 1\]"),
}


@pytest.mark.parametrize(("starts", "keep", "sentence"), REFUSED.values(), ids=REFUSED)
def test_refusals(starts: list[int], keep: list[float], sentence: str) -> None:
    inputs = {"cu_seqlens": np.array(starts, np.int32), "keep": np.array(keep, np.float32)}
    with pytest.raises(InvalidArgument, match=f"KeptLengths: {sentence}"):
        run("kept_lengths", inputs, {})


@pytest.mark.parametrize("exponent", [-0.5, 1.25])
def test_an_exponent_outside_its_range_is_refused(exponent: float) -> None:
    with pytest.raises(Exception, match=rf"KeptLengths: attribute exponent is {exponent}, must be in \[0, 1\]"):
        kept([3], [0.5], exponent)
