"""The library's gradient of YOSO's mean over tables, against dense matrices of collisions in float64."""

from typing import Any

import numpy as np
import pytest
from harness import Array, in_process, offsets

from attenuator.errors import EngineError
from attenuator.ops import library_path
from attenuator.ops.c_api import DTYPE_CODES, HeadRows, Memory
from attenuator.ops.yoso import reference
from attenuator.ops.yoso.c_api import gradient

LAYER = 5


def draw(lengths: tuple[int, ...], heads: int, head_dim: int, value_dim: int, seed: int = 0) -> list[Array]:
    """Query, key, value and a gradient, `[T, heads, channels]`; keys lie near one another, and some near a query."""
    generator = np.random.default_rng(seed)
    rows = sum(lengths)
    query, key, value, grad = (
        generator.standard_normal((rows, heads, size)).astype(np.float32)
        for size in (head_dim, head_dim, value_dim, value_dim)
    )
    return [query, 0.5 * key + 0.5 * np.roll(query, 1, axis=0) + np.float32(0.4), value, grad]


def memory(array: Array) -> Memory:
    name = {"int32": "int32", "int64": "int64", "float32": "float"}[str(array.dtype)]
    assert name in DTYPE_CODES
    return Memory(array.ctypes.data, name, array.shape)


def head_rows(array: Array) -> HeadRows:
    assert array.size == 0 or array.strides[2] == 4
    return HeadRows(array.ctypes.data, array.strides[0] // 4, array.strides[1] // 4, array.shape[2])


def computed(
    rows: list[Array],
    lengths: tuple[int, ...],
    hashes: int | list[int],
    bits: int,
    hash: str = "gaussian",
    softening: float | None = None,
    threads: int = 1,
) -> list[Array]:
    """By query, key and value; sequence b has the seed b. With a softening *YOSO, else eq. 4."""
    results = [np.full_like(array, np.nan) for array in rows[:3]]
    batch = len(lengths)
    hashing = [offsets(lengths), np.resize(hashes, batch).astype(np.int32), np.arange(batch)]
    attributes = {"num_heads": rows[0].shape[1], "hash_bits": bits, "layer": LAYER, "hash": hash}
    everything = [head_rows(array) for array in (*rows, *results)]
    inputs = [memory(array) for array in hashing]
    kind = (softening is not None, softening or 0.0)
    gradient(str(library_path()), everything, len(rows[0]), inputs, attributes, *kind, threads)
    return results


def through_unit(by_unit: Array, rows: Array) -> Array:
    """By rows of float64, from the gradient by their unit rows."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / length
    gradient: Array = (by_unit - unit * (unit * by_unit).sum(axis=1, keepdims=True)) / length
    return gradient


def true_slope(cosine: Array, bits: int, softening: float) -> Array:
    """Eq. 3 with `softening` in its root."""
    share = 1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi
    slope: Array = bits * share ** (bits - 1) / (np.pi * np.sqrt(1 - cosine**2 + softening))
    return slope


def expected(
    rows: list[Array],
    lengths: tuple[int, ...],
    hashes: int | list[int],
    bits: int,
    hash: str,
    softening: float | None = None,
) -> list[Array]:
    """The same by n by n matrices."""
    results = [np.zeros(array.shape) for array in rows[:3]]
    starts = offsets(lengths)
    for b, (first, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        share = int(np.resize(hashes, len(lengths))[b])
        for head in range(rows[0].shape[1]):
            query, key, value, grad = (array[first:end, head] for array in rows)
            of_query, of_key = (
                reference.codes(side, b, LAYER, head, share, bits, hash)  # type: ignore[arg-type]
                for side in (query, key)
            )
            counts = np.zeros((end - first, end - first))
            for t in range(share):
                counts += of_query[:, None, t] == of_key[None, :, t]
            weights = counts / share
            query, key, value, grad = (array.astype(np.float64) for array in (query, key, value, grad))
            unit_query, unit_key = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (query, key))
            slope = bits / 2 * weights
            if softening is not None:
                slope = np.where(counts > 0, true_slope(unit_query @ unit_key.T, bits, softening), 0)
            slope = slope * (grad @ value.T)
            results[0][first:end, head] = through_unit(slope @ unit_key, query)
            results[1][first:end, head] = through_unit(slope.T @ unit_query, key)
            results[2][first:end, head] = weights.T @ grad
    return results


def close(actual: list[Array], other: list[Array], tolerance: float = 8e-6) -> None:
    """Each number within a share of the largest."""
    for name, one, exact in zip(("query", "key", "value"), actual, other, strict=True):
        distance, largest = np.abs(one - exact).max(), np.abs(exact).max()
        assert distance <= tolerance * largest, f"the gradient by {name} differs by {distance:.1e} of {largest:.1e}"


# Lengths, heads, head_dim, value_dim, hashes, hash_bits, hash: buckets of a pair, of less and of more than a tile, of
# more rows than channels; channels that fill no register; more hashes than are coded at once; sequences of no row and
# of one.
CASES = [
    ((1,) * 40, 1, 8, 8, 1, 1, "gaussian"),
    ((1, 0, 9, 33), 2, 8, 12, 5, 3, "gaussian"),
    ((300, 5, 1), 3, 64, 65, 40, 8, "hadamard"),
    ((257,), 2, 33, 100, 70, 8, "hadamard"),
    ((511,), 1, 20, 17, 33, 9, "gaussian"),
    ((700, 2), 2, 64, 64, 3, 1, "gaussian"),
    ((130,), 1, 64, 31, 4, 2, "gaussian"),
    ((400,), 1, 256, 256, 2, 2, "gaussian"),
    ((600,), 1, 16, 16, 4, 16, "gaussian"),
    ((90,), 2, 24, 40, 512, 7, "gaussian"),
    ((64, 200), 2, 32, 48, [7, 35], 5, "gaussian"),
]


@pytest.mark.parametrize("softening", [None, 0.01], ids=["bound", "collided"])
@pytest.mark.parametrize(("lengths", "heads", "head_dim", "value_dim", "hashes", "bits", "hash"), CASES)
def test_gradients_are_those_of_the_dense_matrices(
    lengths: tuple[int, ...],
    heads: int,
    head_dim: int,
    value_dim: int,
    hashes: int | list[int],
    bits: int,
    hash: str,
    softening: float | None,
) -> None:
    rows = draw(lengths, heads, head_dim, value_dim, seed=int(np.random.default_rng().integers(2**32)))
    actual = computed(rows, lengths, hashes, bits, hash, softening)
    close(actual, expected(rows, lengths, hashes, bits, hash, softening))


def test_true_derivative_of_equal_and_opposite_rows() -> None:
    """Its root is that of the softening alone; with none, of a least positive number, and what is across a row is 0."""
    query, key, value, grad = draw((6,), 1, 8, 8)
    key[:3], key[3:] = 2 * query[:3], -query[3:]
    rows = [query, key, value, grad]
    close(computed(rows, (6,), 8, 1, softening=1.0), expected(rows, (6,), 8, 1, "gaussian", 1.0))
    assert all(np.isfinite(array).all() for array in computed(rows, (6,), 8, 1, softening=0.0))


@pytest.mark.parametrize("softening", [None, 0.01], ids=["bound", "collided"])
@pytest.mark.parametrize("bits", [2, 8, 13])
def test_neither_threads_nor_neighbours_nor_layout_change_a_bit(bits: int, softening: float | None) -> None:
    """One long head, which idle threads share, alone and beside others, in rows of heads and in heads of rows."""
    lengths = (700,)
    rows = draw(lengths, 1, 32, 40)
    alone = computed(rows, lengths, 35, bits, softening=softening)
    shared = computed(rows, lengths, 35, bits, softening=softening, threads=3)
    beside = [np.concatenate([array, array[:50]]) for array in rows]
    together = computed(beside, (700, 50), 35, bits, softening=softening, threads=2)
    heads_first = [np.ascontiguousarray(np.repeat(array, 2, 1).transpose(1, 0, 2)).transpose(1, 0, 2) for array in rows]
    across = computed(heads_first, lengths, 35, bits, softening=softening)
    for one, two, three, four in zip(alone, shared, together, across, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(one, three[:700])
        assert np.array_equal(one[:, 0], four[:, 0])


def test_rows_of_any_length_have_gradients_and_rows_without_direction_have_none() -> None:
    """A gradient is that of a row of length 1 over the length; zero rows collide, and have no direction to change."""
    lengths = (40,)
    rows = draw(lengths, 1, 16, 16)
    scale = np.ldexp(np.float32(1), np.arange(-30, 50, 2))[:, None, None]  # powers of two: no rounding, the same codes
    one = computed(rows, lengths, 6, 3)
    scaled = computed([rows[0] * scale, rows[1] * scale[::-1], *rows[2:]], lengths, 6, 3)
    close([scaled[0] * scale, scaled[1] * scale[::-1], scaled[2]], one)
    rows[0][7], rows[1][11] = 0, 1e-20
    without = computed(rows, lengths, 6, 3)
    assert all(np.isfinite(array).all() for array in without)
    assert not without[0][7].any()
    assert not without[1][11].any()


@pytest.mark.parametrize("side", [0, 1], ids=["query", "key"])
def test_a_row_that_is_not_finite_breaks_its_own_sequence(side: int) -> None:
    lengths = (5, 30, 4)
    rows = draw(lengths, 2, 8, 8)
    clean = computed(rows, lengths, 4, 3)
    rows[side][12, 1, 3] = np.inf
    for one, other in zip(computed(rows, lengths, 4, 3, threads=2), clean, strict=True):
        assert np.isnan(one[5:35]).all()
        assert np.array_equal(one[:5], other[:5])
        assert np.array_equal(one[35:], other[35:])


def test_temporary_memory_is_linear_in_the_length() -> None:
    """8,192 tokens, 33 hashes, whose pairs would take 64 MiB at a byte each: at most 4 beside inputs and results."""
    script = """
from benchmarks.operators.peak_memory import peak_mib
from test_yoso_gradient import computed, draw

rows, few = draw((8192,), 1, 64, 64), draw((64,), 1, 64, 64)
results = sum(array.nbytes for array in rows[:3]) / 2**20
for softening in (None, 0.01):
    computed(few, (64,), 33, 8, softening=softening)  # planes into their cache, code into memory
    print(peak_mib(lambda: computed(rows, (8192,), 33, 8, softening=softening) and None) - results)
"""
    # What is freed goes back to the system at once, so that nothing is taken from there unseen.
    done = in_process(script, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    assert done.returncode == 0, done.stderr
    beside = [float(line) for line in done.stdout.split()]
    assert len(beside) == 2
    assert max(beside) <= 4, beside


def test_no_rows_have_no_gradients() -> None:
    assert all(array.size == 0 for array in computed(draw((0,), 1, 8, 8), (0,), 4, 3))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hashes": 0}, r"num_hashes\[0\] is 0, must be in \[1, 512\] for a gradient"),
        ({"hashes": 513}, r"num_hashes\[0\] is 513, must be in \[0, 512\]"),
        ({"bits": 17}, r"hash_bits is 17, must be in \[1, 16\]"),
        ({"lengths": (9,)}, r"cu_seqlens\[1\] is 9, must be 8, the number of packed rows"),
        ({"value_dim": 257}, r"value has head_dim 257, must be in \[8, 256\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_operator_refuses(change: dict[str, Any], sentence: str) -> None:
    settings: dict[str, Any] = {"lengths": (8,), "hashes": 4, "bits": 3} | change
    rows = draw((8,), 1, 8, settings.pop("value_dim", 8))
    with pytest.raises(EngineError, match=sentence):
        computed(rows, **settings)


@pytest.mark.parametrize("softening", [-0.5, np.nan])
def test_a_softening_out_of_range_is_refused(softening: float) -> None:
    with pytest.raises(EngineError, match=r"softening is .*, must be in \[0, 1\]"):
        computed(draw((8,), 1, 8, 8), (8,), 4, 3, softening=softening)


def test_tensors_that_do_not_fit_one_another_are_refused() -> None:
    rows = draw((8,), 1, 8, 12)
    rows[3] = rows[3][:, :, :8]
    with pytest.raises(EngineError, match="the gradient's grad has 8 channels a head, must have 12"):
        computed(rows, (8,), 4, 3)
