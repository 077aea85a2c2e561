"""YosoAttention divided by its collisions (normalize = 2) and with the norm lift, against the NumPy reference."""

import itertools

import numpy as np
import pytest
from cases import same_bits
from harness import AttributeValue, offsets, run
from yoso_cases import HASHES, fresh, lengthy_rows, make, relative

from attenuator.ops.yoso.reference import Hash, codes, yoso_attention, yoso_importance

LENGTHS = (0, 1, 7, 65, 190, 0, 401)  # count path and table path
HASH_COUNTS = (3, 0, 33, 1, 9, 70, 16)

# heads, head_dim, value_dim, hash_bits, hash, queries, taps
SHAPES = [
    (2, 64, 64, 8, "gaussian", "all", 0),
    (1, 64, 20, 8, "hadamard", "all", 5),
    (3, 8, 17, 1, "gaussian", "first", 3),
    (2, 33, 9, 3, "hadamard", "first", 0),
    (1, 255, 31, 9, "gaussian", "all", 0),
    (1, 200, 12, 6, "hadamard", "all", 0),
    (2, 20, 100, 16, "gaussian", "all", 7),
]
# normalize, and the bound over head_dim, the mean squared norm of the rows: below, among and far above their own.
KINDS = [(2, 0.0), (2, 1.0), (1, 0.6), (0, 40.0)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"normalize{kind[0]}-lift{kind[1]}")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_equals_the_reference(shape: tuple[int, int, int, int, Hash, str, int], kind: tuple[int, float]) -> None:
    num_heads, head_dim, value_dim, hash_bits, hash, queries, taps = shape
    inputs = fresh(LENGTHS, num_heads, head_dim, value_dim, num_hashes=HASH_COUNTS, queries=queries, taps=taps)
    attributes: dict[str, AttributeValue] = {
        "num_heads": num_heads, "hash_bits": hash_bits, "layer": 3, "hash": hash, "queries": queries,
        "normalize": kind[0], "norm_lift": kind[1] * head_dim,
    }  # fmt: skip
    actual, importance = run("yoso", inputs, attributes | {"importance": "first"}, threads=2)
    assert relative(actual, yoso_attention(**inputs, **attributes)) < 1e-5  # type: ignore[arg-type]
    names = ("query", "key", "cu_seqlens", "num_hashes", "seed")
    expected = yoso_importance(**{name: inputs[name] for name in names}, **attributes)  # type: ignore[arg-type]
    np.testing.assert_allclose(importance, expected, rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("length", [45, 500], ids=["counts", "tables"])
@pytest.mark.parametrize(
    ("head_dim", "hash_bits", "num_hashes"), [(64, 8, 32), (8, 1, 5), (20, 3, 70), (100, 9, 33), (256, 16, 3)]
)
@pytest.mark.parametrize("hash", HASHES)
def test_lifted_codes_equal_the_reference_bit_for_bit(
    hash: Hash, head_dim: int, hash_bits: int, num_hashes: int, length: int
) -> None:
    """Values of one column count collisions, the others tell which keys took part."""
    query, key = lengthy_rows(head_dim, length), lengthy_rows(head_dim, length)[::-1].copy()
    value = np.zeros((length, 16), np.float32)
    value[np.arange(length), np.arange(length) % 15] = 1
    value[:, 15] = np.arange(length)
    inputs = {
        "query": query, "key": key, "value": value, "cu_seqlens": offsets([length]),
        "num_hashes": np.array([num_hashes], np.int32), "seed": np.array([11]),
    }  # fmt: skip
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "hash": hash, "layer": 2}
    [output] = run("yoso", inputs, attributes | {"normalize": 0, "norm_lift": 3.0})
    settings = (11, 2, 0, num_hashes, hash_bits, hash, 3.0)
    of_query, of_key = codes(query, *settings, "query"), codes(key, *settings, "key")
    expected = np.zeros((length, 16))
    for t in range(num_hashes):
        expected += (of_query[:, t, None] == of_key[None, :, t]) @ value.astype(np.float64)
    np.testing.assert_allclose(output * num_hashes, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("num_hashes", [0, 20])
@pytest.mark.parametrize("length", [30, 600])
def test_a_bound_below_every_row_changes_no_bit(hash: Hash, num_hashes: int, length: int) -> None:
    inputs = fresh((length, 1), 2, 24, 16, num_hashes=num_hashes)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 8, "hash": hash}
    assert same_bits(run("yoso", inputs, attributes | {"norm_lift": 1e-20}), run("yoso", inputs, attributes))


@pytest.mark.parametrize("lift", [0.0, 20.0])
@pytest.mark.parametrize("num_hashes", [0, 1, 33, 512])
def test_a_row_is_the_mean_of_its_values_weighted_by_collisions(num_hashes: int, lift: float) -> None:
    """What the raw average gives of a column of ones is what it is divided by; a row that met nobody is 0."""
    inputs = fresh((1, 2, 90, 700), 1, 16, 24, num_hashes=num_hashes)
    inputs["value"][:, 23] = 1
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 9, "norm_lift": lift}
    [raw] = run("yoso", inputs, attributes | {"normalize": 0})
    [ratio] = run("yoso", inputs, attributes | {"normalize": 2})
    met = raw[:, 23] > 0
    np.testing.assert_allclose(ratio[met], raw[met] / raw[met, 23:], rtol=2e-5, atol=2e-6)
    assert not ratio[~met].any()
    if not lift:
        assert met.all() == (num_hashes in (0, 512))


@pytest.mark.parametrize("num_hashes", [0, 7])
def test_one_token_is_its_value(num_hashes: int) -> None:
    inputs = make((1, 1), 2, 16, 16, num_hashes)
    inputs["key"] = inputs["query"].copy()
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 8, "normalize": 2}
    np.testing.assert_allclose(run("yoso", inputs, attributes)[0], inputs["value"], rtol=1e-6)


@pytest.mark.parametrize("hash_bits", [1, 8])
def test_the_expectation_of_opposite_rows_is_their_mean_until_it_vanishes(hash_bits: int) -> None:
    """Weights far below 1 still share a row; where all of them round to nothing the row is 0, as without collisions."""
    inputs = make((9,), 1, 16, 16, 0)
    direction = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
    inputs["query"], inputs["key"] = np.repeat(direction, 9, 0), np.repeat(-direction, 9, 0)
    inputs["key"][:, 3] += np.float32(0.02)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": 2}
    [output] = run("yoso", inputs, attributes)
    np.testing.assert_allclose(output, np.tile(inputs["value"].mean(axis=0), (9, 1)), rtol=1e-5, atol=1e-6)
    inputs["key"] = np.repeat(-direction, 9, 0)
    [output] = run("yoso", inputs, attributes)
    np.testing.assert_array_equal(output, np.zeros_like(output))


# Long enough for idle threads to join in: packed at once and by 16 columns, wide codes, two chunks of hashes.
SHARED = [((1100,), 64, 8, "gaussian", 64), ((4200, 30), 70, 8, "hadamard", 40), ((1500, 900), 20, 12, "gaussian", 33)]


@pytest.mark.parametrize("shape", SHARED, ids=lambda shape: "-".join(map(str, shape)))
def test_threads_and_neighbours_change_no_bit(shape: tuple[tuple[int, ...], int, int, Hash, int]) -> None:
    lengths, value_dim, hash_bits, hash, num_hashes = shape
    inputs = fresh(lengths, 1, 32, value_dim, num_hashes=num_hashes)
    attributes: dict[str, AttributeValue] = {
        "num_heads": 1, "hash_bits": hash_bits, "hash": hash, "normalize": 2, "norm_lift": 40.0
    }  # fmt: skip
    [expected] = run("yoso", inputs, attributes, threads=1)
    for threads in (2, 5, 2, 5):  # who runs which piece differs from run to run
        assert same_bits(run("yoso", inputs, attributes, threads=threads), [expected])
    for b, (start, end) in enumerate(itertools.pairwise(inputs["cu_seqlens"])):
        alone = {name: x[start:end] if x.ndim == 2 else x[b : b + 1] for name, x in inputs.items()}
        alone["cu_seqlens"] = offsets([end - start])
        assert same_bits(run("yoso", alone, attributes), [expected[start:end]])


@pytest.mark.parametrize("num_hashes", [0, 8])
def test_a_sequence_that_is_not_finite_is_nan_alone(num_hashes: int) -> None:
    inputs = fresh((30, 400), 2, 16, 16, num_hashes=num_hashes)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 6, "normalize": 2, "norm_lift": 9.0}
    [clean] = run("yoso", inputs, attributes)
    inputs["key"][33, 2] = np.inf
    [output] = run("yoso", inputs, attributes)
    assert np.isnan(output[30:]).all()
    assert same_bits([output[:30]], [clean[:30]])


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 2e30])
def test_bounds_that_are_none_are_refused_by_name(bad: float) -> None:
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 4, "norm_lift": bad}
    with pytest.raises(Exception, match=r"YosoAttention: attribute norm_lift is .*, must be in \[0, 1e\+30\]"):
        run("yoso", make((2,), 2, 8, 8, 4), attributes)


def test_other_normalisations_are_refused_by_name() -> None:
    with pytest.raises(Exception, match=r"YosoAttention: attribute normalize is 3, must be in \[0, 2\]"):
        run("yoso", make((2,), 2, 8, 8, 4), {"num_heads": 2, "hash_bits": 4, "normalize": 3})
