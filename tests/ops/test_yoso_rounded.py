"""YosoAttention's tables of int16: against the reference, their bound with hostile values, full buckets."""

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, offsets, run
from yoso_cases import HASHES, make, relative

from attenuator.ops.yoso.reference import Hash, head_weights, yoso_attention
from attenuator.ops.yoso.rule import ROUNDED_HIGH, SHORT_KEYS, rounds

LENGTHS = (0, 1, 65, 130, 259, 700)
# heads, head_dim, value_dim, hash_bits, hash, normalize, norm_lift, taps
SHAPES = [
    (2, 64, 64, 8, "gaussian", 1, 0.0, 0),
    (1, 24, 17, 1, "hadamard", 0, 0.0, 0),
    (3, 20, 40, 5, "gaussian", 2, 0.0, 5),
    (1, 33, 8, 9, "hadamard", 1, 0.0, 0),
    (2, 16, 100, 12, "gaussian", 0, 0.0, 3),
    (1, 40, 256, 8, "gaussian", 1, 30.0, 0),
    (2, 31, 33, 16, "hadamard", 2, 20.0, 0),
]
ROUNDED: dict[str, AttributeValue] = {"table_precision": "int16"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_equals_the_reference(shape: tuple[int, int, int, int, Hash, int, float, int]) -> None:
    num_heads, head_dim, value_dim, hash_bits, hash, normalize, norm_lift, taps = shape
    inputs = make(LENGTHS, num_heads, head_dim, value_dim, [3, 0, 33, 70, 9, 16], taps=taps)
    attributes: dict[str, AttributeValue] = ROUNDED | {
        "num_heads": num_heads, "hash_bits": hash_bits, "layer": 2, "hash": hash, "normalize": normalize,
        "norm_lift": norm_lift,
    }  # fmt: skip
    for shift in (0, 1, 4):
        inputs["num_hashes"] = np.roll(inputs["num_hashes"], shift)
        actual = run("yoso", inputs, attributes)[0]
        assert relative(actual, yoso_attention(**inputs, **attributes)) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("value_dim", [16, 48])
def test_a_long_sequence_takes_its_columns_a_few_at_a_time(value_dim: int) -> None:
    """More values and sums than are packed at once, in three chunks of hashes."""
    inputs = make((17_000 if value_dim == 16 else 6_000,), 1, 8, value_dim, 67)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 7}
    exact = run("yoso", inputs, attributes)[0]
    actual = run("yoso", inputs, attributes | ROUNDED, threads=2)[0]
    some = np.random.default_rng(0).choice(len(actual), 40, replace=False)
    whole = inputs | {"query": inputs["query"][some]}
    weights = head_weights(whole["query"], whole["key"], num_hashes=67, seed=int(inputs["seed"][0]), layer=0, head=0,
                           hash_bits=7, hash="gaussian")  # fmt: skip
    largest = np.abs(inputs["value"]).max(axis=0)
    step = largest / np.float32(ROUNDED_HIGH)
    rows = weights @ (np.rint(inputs["value"] / step) * step.astype(np.float64))
    assert relative(actual[some], rows / np.linalg.norm(rows, axis=1, keepdims=True)) < 1e-6
    assert relative(actual, exact) > 1e-4  # it did round


@pytest.mark.parametrize(("hash_bits", "num_hashes", "value_dim"), [(8, 8, 64), (8, 33, 64), (5, 3, 12), (11, 20, 8)])
def test_short_sequences_are_not_rounded(hash_bits: int, num_hashes: int, value_dim: int) -> None:
    """The rule's limit is the kernels'."""
    limit = next(n for n in range(1000) if rounds(2, n + 1, num_hashes, hash_bits, value_dim))
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": 0}
    for length in (limit, limit + 1):
        inputs = make((length,), 1, 16, value_dim, num_hashes)
        moved = relative(run("yoso", inputs, attributes | ROUNDED)[0], run("yoso", inputs, attributes)[0])
        assert (moved > 1e-4) == (length > limit)


def hostile_values(kind: str, length: int, columns: int) -> Array:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((length, columns)).astype(np.float32)
    if kind == "one huge":
        values[length // 2] = 1e30
    elif kind == "one huge column":
        values[:, 1] *= np.float32(1e20)
    elif kind == "constant":
        values = np.resize(np.array([3.7, -3.7, 0, -1e-20, 1e33], np.float32), (1, columns)).repeat(length, axis=0)
    elif kind == "alternating":
        values = np.where(np.arange(length)[:, None] % 2, np.float32(5), np.float32(-5)) * np.ones_like(values)
    elif kind == "tiny":
        values *= np.float32(1e-38)
    elif kind == "halves":  # farthest from a whole number of steps
        values = (rng.integers(-126, 126, values.shape) + 0.5).astype(np.float32)
        values[0] = 127
    return values


KINDS = ("normal", "one huge", "one huge column", "constant", "alternating", "tiny", "halves")


@pytest.mark.parametrize("keys", ["all alike", "apart"])
@pytest.mark.parametrize("kind", KINDS)
def test_bound(kind: str, keys: str) -> None:
    """A row moves by at most half a step of each column times the sum of its weights; divided by that, half a step."""
    length, columns, num_hashes = 600, 40, 11
    inputs = make((length,), 1, 16, columns, num_hashes)
    inputs["value"] = hostile_values(kind, length, columns)
    if keys == "all alike":
        inputs["key"][:] = inputs["key"][0]
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 6, "normalize": 0}
    weights = head_weights(inputs["query"], inputs["key"], num_hashes=num_hashes, seed=int(inputs["seed"][0]), layer=0,
                           head=0, hash_bits=6, hash="gaussian")  # fmt: skip
    wide = inputs["value"].astype(np.float64)
    half_step = np.maximum(np.abs(wide).max(axis=0), 1e-30) / (2 * ROUNDED_HIGH) * (1 + 1e-5)
    for normalize, sums in ((0, weights.sum(axis=1)), (2, (weights > 0).any(axis=1))):
        actual = run("yoso", inputs, attributes | ROUNDED | {"normalize": normalize})[0]
        exact = yoso_attention(**inputs, **attributes | {"normalize": normalize})  # type: ignore[arg-type]
        largest_sum = np.abs(exact).max(axis=0)
        assert (np.abs(actual - exact) <= sums[:, None] * half_step + 1e-6 * largest_sum).all()


@pytest.mark.parametrize("length", [64, SHORT_KEYS // 4 + 1, SHORT_KEYS, SHORT_KEYS + 1, 1100, 40_000])
@pytest.mark.parametrize("hash", HASHES)
def test_full_buckets_do_not_overflow(hash: Hash, length: int) -> None:
    """Every key in one bucket, every value at a limit of its column: sums of the three widths at their largest."""
    inputs = make((length,), 1, 8, 8, 5)
    inputs["query"][:] = inputs["key"][:] = inputs["key"][0]
    inputs["value"] = np.resize(np.array([1, -1, 3, -1e25], np.float32), (1, 8)).repeat(length, axis=0)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 4, "hash": hash, "normalize": 0}
    assert rounds(length, length, 5, 4, 8)
    actual = run("yoso", inputs, attributes | ROUNDED)[0]
    np.testing.assert_allclose(actual, length * inputs["value"].astype(np.float64), rtol=1e-6)


def test_widths_change_no_bit() -> None:
    """Keys without a value fill a bucket until its table's sums need 16 bits of their own, then 32."""
    inputs = make((900,), 1, 16, 40, 12)
    attributes = ROUNDED | {"num_heads": 1, "hash_bits": 8, "normalize": 0}
    inputs["value"][:600] = 0
    apart = run("yoso", inputs, attributes)
    for alike in (100, 600):
        inputs["key"][:alike] = inputs["key"][0]
        assert same_bits(run("yoso", inputs, attributes), apart)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_sequence_nan(name: str, bad: float) -> None:
    inputs = make((300, 310, 290), 1, 16, 40, 6)
    attributes = ROUNDED | {"num_heads": 1, "hash_bits": 8}
    clean = run("yoso", inputs, attributes)[0]
    inputs[name][450, 3] = bad
    output = run("yoso", inputs, attributes)[0]
    assert np.isnan(output[300:610]).all()
    assert same_bits([output[:300], output[610:]], [clean[:300], clean[610:]])


@pytest.mark.parametrize("normalize", [0, 1, 2])
def test_bits_depend_neither_on_neighbours_nor_on_threads(normalize: int) -> None:
    """One of the neighbours has far larger values."""
    lengths = (400, 1500, 300)
    inputs = make(lengths, 2, 16, 40, [9, 40, 3])
    inputs["value"][1900:] *= np.float32(1e10)
    attributes = ROUNDED | {"num_heads": 2, "hash_bits": 8, "normalize": normalize}
    [whole] = run("yoso", inputs, attributes)
    assert same_bits([whole], run("yoso", inputs, attributes, threads=3))
    start = 0
    for b, length in enumerate(lengths):
        rows = slice(start, start + length)
        alone = {name: x[rows] if x.ndim == 2 else x[b : b + 1] for name, x in inputs.items()}
        assert same_bits(run("yoso", alone | {"cu_seqlens": offsets([length])}, attributes), [whole[rows]])
        start += length


def test_importance_is_that_of_tables_of_float32() -> None:
    """It counts codes and reads no table."""
    inputs = make((300, 20), 2, 16, 16, [12, 4])
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 7, "importance": "first"}
    assert same_bits(run("yoso", inputs, attributes | ROUNDED)[1:], run("yoso", inputs, attributes)[1:])
