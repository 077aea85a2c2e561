"""YosoAttention against its reference: codes bit for bit, outputs, edge cases, errors."""

import itertools

import numpy as np
import pytest
from harness import offsets, run
from yoso_cases import HASHES, LENGTHS, check_codes, collisions, make, relative

from attenuator.ops.yoso import gaussian_table
from attenuator.ops.yoso.reference import Hash, codes, convolution, head_weights, unit, yoso_attention

# heads, head_dim, value_dim, hash_bits, hash, normalize, queries, taps
SHAPES = [
    (1, 64, 64, 8, "gaussian", 1, "all", 0),
    (2, 64, 64, 8, "hadamard", 1, "all", 33),
    (3, 8, 8, 1, "gaussian", 0, "all", 1),
    (3, 8, 17, 3, "hadamard", 0, "first", 3),
    (2, 20, 200, 5, "gaussian", 1, "first", 5),
    (1, 33, 9, 7, "hadamard", 1, "all", 0),
    (5, 12, 16, 9, "gaussian", 1, "all", 3),
    (1, 100, 80, 10, "gaussian", 0, "all", 0),
    (2, 96, 48, 12, "hadamard", 1, "first", 0),
    (1, 256, 256, 8, "gaussian", 1, "all", 0),
    (1, 255, 31, 6, "hadamard", 0, "all", 7),
    (2, 31, 40, 16, "gaussian", 1, "all", 0),
    (1, 48, 24, 16, "hadamard", 0, "all", 9),
    (2, 65, 64, 13, "gaussian", 1, "first", 101),
    (4, 16, 16, 15, "gaussian", 0, "all", 0),
    (1, 128, 130, 11, "hadamard", 1, "all", 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_equals_the_reference(shape: tuple[int, int, int, int, Hash, int, str, int]) -> None:
    num_heads, head_dim, value_dim, hash_bits, hash, normalize, queries, taps = shape
    inputs = make(LENGTHS, num_heads, head_dim, value_dim, [3, 0, 33, 1, 9, 70, 16], queries, taps)
    attributes = {
        "num_heads": num_heads, "hash_bits": hash_bits, "layer": 3, "hash": hash, "normalize": normalize,
        "queries": queries,
    }  # fmt: skip
    for shift in range(0, len(LENGTHS), 3):  # so that each length meets several knobs
        inputs["num_hashes"] = np.roll(inputs["num_hashes"], shift)
        actual = run("yoso", inputs, attributes)[0]
        expected = yoso_attention(**inputs, **attributes)  # type: ignore[arg-type]
        assert actual.shape == expected.shape
        assert relative(actual, expected) < 1e-5


@pytest.mark.parametrize("length", [40, 700], ids=["counts", "tables"])
@pytest.mark.parametrize(
    ("head_dim", "hash_bits", "num_hashes"),
    [
        (64, 8, 32),
        (8, 1, 1),
        (8, 2, 31),
        (20, 3, 40),
        (37, 7, 33),
        (64, 9, 8),
        (128, 12, 19),
        (256, 16, 6),
        (100, 8, 65),
    ],
)
@pytest.mark.parametrize("hash", HASHES)
def test_codes_equal_the_reference_bit_for_bit(
    hash: Hash, head_dim: int, hash_bits: int, num_hashes: int, length: int
) -> None:
    check_codes(hash, head_dim, hash_bits, num_hashes, length)


@pytest.mark.parametrize("length", [50, 600], ids=["counts", "tables"])
@pytest.mark.parametrize("hash", HASHES)
def test_more_hashes_begin_with_the_same_ones(hash: Hash, length: int) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((length, 24)).astype(np.float32)
    query = rows + np.float32(0.3) * rng.standard_normal(rows.shape).astype(np.float32)
    all_codes = [codes(x, 5, 0, 0, 100, 6, hash) for x in (query, rows)]
    for num_hashes in (1, 2, 31, 32, 33, 64, 65, 100):
        prefix = [whole[:, :num_hashes] for whole in all_codes]
        expected = sum((prefix[0][:, t, None] == prefix[1][None, :, t]).astype(int) for t in range(num_hashes))
        assert np.array_equal(collisions(query, rows, num_hashes, 6, hash), expected)


@pytest.mark.parametrize("hash", HASHES)
def test_seed_layer_and_head_choose_the_planes(hash: Hash) -> None:
    inputs = make((60,), 1, 16, 16, 8)
    inputs = {name: np.hstack([x, x]) if x.ndim == 2 else x for name, x in inputs.items()}
    outputs = []
    for seed, layer in itertools.product((0, 1, 2**32, 2**53 - 1), (0, 1)):
        inputs["seed"] = np.array([seed])
        output = run("yoso", inputs, {"num_heads": 2, "hash_bits": 6, "layer": layer, "hash": hash})[0]
        assert np.array_equal(
            output, run("yoso", inputs, {"num_heads": 2, "hash_bits": 6, "layer": layer, "hash": hash})[0]
        )
        outputs += [output[:, :16], output[:, 16:]]
    assert all(not np.array_equal(a, b) for a, b in itertools.combinations(outputs, 2))


@pytest.mark.parametrize(("num_hashes", "length"), [(8, 100), (8, 900), (0, 300)], ids=["counts", "tables", "exact"])
def test_first_queries_are_the_first_rows_of_all(num_hashes: int, length: int) -> None:
    lengths = (length, 1, length + 9)
    inputs = make(lengths, 2, 40, 24, num_hashes, taps=5)
    attributes = {"num_heads": 2, "hash_bits": 7}
    whole = run("yoso", inputs, attributes)[0][inputs["cu_seqlens"][:-1]]
    inputs["query"] = inputs["query"][inputs["cu_seqlens"][:-1]]
    first = run("yoso", inputs, attributes | {"queries": "first"})[0]
    assert relative(first, whole) < 1e-5


def test_empty_sequences_have_zero_first_rows() -> None:
    inputs = make((0, 4, 0), 1, 8, 8, 16, queries="first", taps=3)
    output = run("yoso", inputs, {"num_heads": 1, "hash_bits": 4, "queries": "first"})[0]
    assert not output[[0, 2]].any()
    assert output[1].any()


@pytest.mark.parametrize("hash", HASHES)
@pytest.mark.parametrize("num_hashes", [0, 20])
@pytest.mark.parametrize("length", [30, 600])
def test_zero_tiny_and_huge_rows(hash: Hash, num_hashes: int, length: int) -> None:
    inputs = make((length,), 2, 24, 16, num_hashes)
    for name in ("query", "key"):
        for row, factor in enumerate((0, 1e-45, 1e-38, 1e-20, 1e-13, 1e-11, 1e15, 3e37)):
            inputs[name][row] *= np.float32(factor)
    inputs["value"][3] = 0
    inputs["value"][4] *= np.float32(1e-42)
    attributes = {"num_heads": 2, "hash_bits": 8, "hash": hash, "normalize": 0}
    actual, expected = run("yoso", inputs, attributes)[0], yoso_attention(**inputs, **attributes)  # type: ignore[arg-type]
    assert np.isfinite(actual).all()
    assert relative(actual, expected) < 1e-5


def test_rows_without_a_collision_stay_zero() -> None:
    inputs = make((300,), 1, 64, 64, 1)
    inputs["key"] -= 3
    inputs["query"] += 3
    output = run("yoso", inputs, {"num_heads": 1, "hash_bits": 16})[0]
    expected = yoso_attention(**inputs, num_heads=1, hash_bits=16)
    assert not expected.any(axis=1).all()
    assert np.array_equal(output.any(axis=1), expected.any(axis=1))


def test_normalised_rows_have_length_one_for_values_of_any_size() -> None:
    for factor in (1e-20, 1.0, 1e20):
        inputs = make((64, 400), 2, 16, 32, [8, 0])
        inputs["value"] *= np.float32(factor)
        norms = np.linalg.norm(run("yoso", inputs, {"num_heads": 2, "hash_bits": 3})[0].reshape(-1, 32), axis=1)
        # Below the floor of 1e-12 a row is divided by the floor.
        np.testing.assert_allclose(norms, 1, atol=2e-6) if factor >= 1 else np.testing.assert_array_less(norms, 1e-6)


def test_expectation_keeps_its_accuracy_where_query_and_key_coincide() -> None:
    # 1 - <q, k> rounds to a multiple of 6e-8 there, and arccos is its root: 1e-3 of error without care.
    rng = np.random.default_rng(0)
    query = rng.standard_normal((90, 64)).astype(np.float32)
    nudges = 10.0 ** -rng.integers(1, 8, (90, 1)) * rng.standard_normal((90, 64))
    inputs = make((90,), 1, 64, 90, 0)
    inputs |= {"query": query, "key": (query + nudges * (np.arange(90) % 2)[:, None]).astype(np.float32)}
    inputs["value"] = np.eye(90, dtype=np.float32)
    output = run("yoso", inputs, {"num_heads": 1, "hash_bits": 8, "normalize": 0})[0]
    expected = yoso_attention(**inputs, num_heads=1, hash_bits=8, normalize=0)
    assert np.abs(output - expected).max() < 4e-6
    assert output.diagonal().min() > 0.7


def test_long_sequence() -> None:
    length, num_hashes, hash_bits = 65536, 3, 16
    inputs = make((length,), 1, 8, 8, num_hashes)
    output = run("yoso", inputs, {"num_heads": 1, "hash_bits": hash_bits, "normalize": 0})[0]
    query_codes, key_codes = (
        codes(inputs[name], int(inputs["seed"][0]), 0, 0, num_hashes, hash_bits, "gaussian")
        for name in ("query", "key")
    )
    expected = np.zeros((length, 8))
    for t in range(num_hashes):
        table = np.zeros((2**hash_bits, 8))
        np.add.at(table, key_codes[:, t], inputs["value"].astype(np.float64))
        expected += table[query_codes[:, t]] / num_hashes
    assert relative(output, expected) < 1e-5


def test_convolution_alone() -> None:
    # All queries and keys alike, values that cancel: attention is zero and the convolution remains.
    inputs = make((6,), 1, 8, 8, 4, taps=5)
    inputs["query"][:], inputs["key"][:] = 1, 1
    inputs["value"] = np.vstack([inputs["value"][:3], -inputs["value"][:3]])
    output = run("yoso", inputs, {"num_heads": 1, "hash_bits": 4, "normalize": 0})[0]
    np.testing.assert_allclose(output, convolution(inputs["value"], inputs["conv_weight"][0]), atol=1e-5)


def test_reference_normalises_like_the_paper() -> None:
    ones = np.ones((2, 8), np.float32)
    weights = head_weights(ones, ones, num_hashes=0, seed=0, layer=0, head=0, hash_bits=8, hash="gaussian")
    rows = weights @ ones
    np.testing.assert_allclose(rows, 2)
    np.testing.assert_allclose(np.linalg.norm(unit(rows), axis=1), 1)
    assert not unit(np.zeros((1, 8))).any()


def test_committed_table_is_what_its_script_writes() -> None:
    source = gaussian_table.__file__.replace(".py", ".inc")
    with open(source, encoding="utf-8") as file:
        assert file.read() == gaussian_table.text()


BAD = {
    "num_hashes[1] is 513, must be in [0, 512]": {"num_hashes": np.array([512, 513], np.int32)},
    "num_hashes[0] is -1, must be in [0, 512]": {"num_hashes": np.array([-1, 0], np.int32)},
    "num_hashes has 1 value for 2 sequences, must have one value per sequence": {"num_hashes": np.array([1], np.int32)},
    "seed[1] is -1, must be in [0, 9007199254740991]": {"seed": np.array([0, -1])},
    "query has size 16 on axis 1, must be 24 (the number of columns of key)": {"key": np.zeros((5, 24), np.float32)},
    "value has size 4 on axis 0, must be 5 (the number of rows of key)": {"value": np.zeros((4, 16), np.float32)},
    "query has size 4 on axis 0, must be 5": {"query": np.zeros((4, 16), np.float32)},
    "key has 17 columns, must have a multiple of num_heads = 2": dict.fromkeys(
        ("query", "key"), np.zeros((5, 17), np.float32)
    ),
    "key has head_dim 7, must be in [8, 256]": dict.fromkeys(("query", "key"), np.zeros((5, 14), np.float32)),
    "value has head_dim 257, must be in [8, 256]": {"value": np.zeros((5, 514), np.float32)},
    "conv_weight has 4 taps (columns), must have an odd number of them": {"conv_weight": np.zeros((2, 4), np.float32)},
    "conv_weight has 0 taps (columns), must have an odd number of them": {"conv_weight": np.zeros((2, 0), np.float32)},
    "conv_weight has size 1 on axis 0, must be 2": {"conv_weight": np.zeros((1, 3), np.float32)},
}


@pytest.mark.parametrize("message", BAD, ids=str)
def test_bad_inputs_are_named(message: str) -> None:
    with pytest.raises(Exception, match="InvalidArgument|INVALID_ARGUMENT") as caught:
        run("yoso", make((2, 3), 2, 8, 8, 4) | BAD[message], {"num_heads": 2, "hash_bits": 4})
    assert f"YosoAttention: {message}" in str(caught.value)


@pytest.mark.parametrize("side", [1.0, -1.0], ids=["equal", "opposite"])
@pytest.mark.parametrize("hash_bits", [1, 2, 8])
def test_expectation_keeps_its_digits_where_rows_are_parallel(hash_bits: int, side: float) -> None:
    inputs = make((7,), 1, 64, 16, num_hashes=0)
    inputs["key"] = (np.float32(0.1 * side) * inputs["query"]).astype(np.float32)
    (actual,) = run("YosoAttention", inputs, {"num_heads": 1, "hash_bits": hash_bits, "normalize": 0})
    query, key = (inputs[name].astype(np.float64) for name in ("query", "key"))
    query /= np.linalg.norm(query, axis=1, keepdims=True)
    key /= np.linalg.norm(key, axis=1, keepdims=True)
    apart, together = (
        np.linalg.norm(query[:, None] + sign * key[None], axis=-1) for sign in (-1.0, 1.0)
    )  # the angle from both is exact at 0 and at pi
    weights = (1 - 2 * np.arctan2(apart, together) / np.pi) ** hash_bits
    expected = weights @ inputs["value"].astype(np.float64)
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


# Long enough for idle threads to join in: packed at once and by 16 columns, wide codes, taps, two chunks of hashes.
SHARED = [
    ((1100,), 64, 8, "gaussian", 64, 0),
    ((4200, 30), 70, 8, "hadamard", 40, 5),
    ((1500, 900), 20, 12, "gaussian", 33, 3),
]


@pytest.mark.parametrize("shape", SHARED, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_beyond_the_heads_change_no_bit(
    shape: tuple[tuple[int, ...], int, int, Hash, int, int], threads: int
) -> None:
    lengths, value_dim, hash_bits, hash, num_hashes, taps = shape
    inputs = make(lengths, 1, 32, value_dim, num_hashes, taps=taps)
    attributes = {"num_heads": 1, "hash_bits": hash_bits, "hash": hash}
    (expected,) = run("yoso", inputs, attributes, threads=1)
    assert np.isfinite(expected).all()
    for _ in range(5):  # who runs which piece differs from run to run
        np.testing.assert_array_equal(run("yoso", inputs, attributes, threads=threads)[0], expected)
    inputs["query"][lengths[0] - 1, 0] = np.nan
    (broken,) = run("yoso", inputs, attributes, threads=threads)
    assert np.isnan(broken[: lengths[0]]).all()
    np.testing.assert_array_equal(broken[lengths[0] :], expected[lengths[0] :])


@pytest.mark.parametrize(("length", "num_hashes"), [(40, 16), (1500, 8), (40, 0)], ids=["counts", "tables", "mean"])
def test_values_as_large_as_their_sums_allow(length: int, num_hashes: int) -> None:
    """Up to 3.4e38 / (m n) nothing overflows: the output of smaller values. Beyond it the output says so."""
    rng = np.random.default_rng(length)
    query = np.repeat(rng.standard_normal((1, 16)), length, axis=0).astype(np.float32)  # all collide always
    value = rng.uniform(0.5, 0.999, (length, 8)).astype(np.float32)
    inputs = {"query": query, "key": query, "cu_seqlens": offsets([length]), "seed": np.zeros(1, np.int64)}
    inputs["num_hashes"] = np.array([num_hashes], np.int32)
    attributes = {"num_heads": 1, "hash_bits": 4}
    exponent = 127 - int(np.ceil(np.log2(length * max(1, num_hashes))))
    [small], [large] = (
        run("yoso", inputs | {"value": value * np.float32(scale)}, attributes) for scale in (1.0, 2.0**exponent)
    )
    np.testing.assert_allclose(large, small, rtol=1e-6)
    [overflowed] = run("yoso", inputs | {"value": value * np.float32(2.0**127)}, attributes)
    assert not np.isfinite(overflowed).any()
