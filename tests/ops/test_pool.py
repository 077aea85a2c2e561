"""SequencePool against its NumPy reference."""

import numpy as np
import pytest
from harness import offsets, run

from attenuator.ops.pool.reference import sequence_pool

LENGTHS = (3, 0, 1, 300, 0, 17)


@pytest.mark.parametrize("mode", ["first", "mean"])
@pytest.mark.parametrize("channels", [1, 7, 16, 33, 768])
def test_equals_the_reference(mode: str, channels: int) -> None:
    hidden = np.random.default_rng(0).standard_normal((sum(LENGTHS), channels)).astype(np.float32)
    output = run("pool", {"hidden": hidden, "cu_seqlens": offsets(LENGTHS)}, {"mode": mode}, threads=2)[0]
    expected = sequence_pool(hidden, offsets(LENGTHS), mode=mode)
    np.testing.assert_allclose(output, expected, rtol=1e-7, atol=0)


def test_first_is_the_row_itself_and_empty_is_zero() -> None:
    hidden = np.array([[np.nan, np.inf], [1, 2], [3, 4]], np.float32)
    output = run("pool", {"hidden": hidden, "cu_seqlens": offsets([1, 0, 2])}, {"mode": "first"})[0]
    np.testing.assert_array_equal(output, np.array([[np.nan, np.inf], [0, 0], [1, 2]], np.float32))


def test_mean_of_a_long_sequence_keeps_all_bits() -> None:
    """A float32 sum of 65,536 values near 1000 would be off in the fourth digit of their fraction."""
    hidden = (1000 + np.random.default_rng(1).random((65536, 3))).astype(np.float32)
    output = run("pool", {"hidden": hidden, "cu_seqlens": offsets([65536])}, {"mode": "mean"})[0]
    np.testing.assert_array_equal(output[0], hidden.mean(axis=0, dtype=np.float64).astype(np.float32))


def test_no_channels() -> None:
    inputs = {"hidden": np.zeros((4, 0), np.float32), "cu_seqlens": offsets([1, 3])}
    assert run("pool", inputs, {"mode": "mean"})[0].shape == (2, 0)
