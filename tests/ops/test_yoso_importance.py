"""YosoAttention's output `importance`: the first row's collisions with each key, against the NumPy reference."""

from collections.abc import Sequence

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, offsets, run
from harness_cuda import DATA_TYPES, run_on_device
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from attenuator.ops.yoso.reference import yoso_importance

HEADS = 3
# Lengths of all three paths: counts, tables, and the expectation where there are no hashes.
LENGTHS = (1, 2, 0, 17, 130, 600, 5)
HASHES = (3, 40, 7, 0, 33, 17, 1)


def yoso_inputs(
    lengths: Sequence[int],
    num_hashes: Sequence[int],
    first: bool = False,
    head_dim: int = 20,
    value_dim: int = 12,
    data: str = "float",
) -> dict[str, Array]:
    """Rows that the element type holds."""
    rng = np.random.default_rng([sum(lengths), head_dim])

    def normal(rows: int, columns: int) -> Array:
        return rng.standard_normal((rows, columns)).astype(DATA_TYPES[data]).astype(np.float32)

    tokens = sum(lengths)
    return {
        "query": normal(len(lengths) if first else tokens, HEADS * head_dim),
        "key": normal(tokens, HEADS * head_dim),
        "value": normal(tokens, HEADS * value_dim),
        "cu_seqlens": offsets(lengths),
        "num_hashes": np.array(num_hashes, np.int32),
        "seed": np.arange(len(lengths)) + 5,
    }


def expected(inputs: dict[str, Array], **attributes: AttributeValue) -> Array:
    names = ("query", "key", "cu_seqlens", "num_hashes", "seed")
    return yoso_importance(**{name: inputs[name] for name in names}, **attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize("hashing", ["gaussian", "hadamard"])
@pytest.mark.parametrize("hash_bits", [4, 9])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_equals_the_reference(hashing: str, hash_bits: int, queries: str) -> None:
    inputs = yoso_inputs(LENGTHS, HASHES, queries == "first")
    shared: dict[str, AttributeValue] = {
        "num_heads": HEADS, "hash_bits": hash_bits, "layer": 3, "hash": hashing, "queries": queries
    }  # fmt: skip
    output, importance = run("yoso", inputs, shared | {"importance": "first"}, threads=2)
    np.testing.assert_allclose(importance, expected(inputs, **shared), rtol=5e-6, atol=1e-6)
    assert same_bits([output], run("yoso", inputs, shared)), "the output is the same with it and without it"


@pytest.mark.parametrize("num_hashes", [31, 32, 33, 64, 65, 100, 130])
@pytest.mark.parametrize("hashing", ["gaussian", "hadamard"])
def test_codes_of_several_chunks(num_hashes: int, hashing: str) -> None:
    inputs = yoso_inputs((700, 40), (num_hashes, num_hashes))
    shared: dict[str, AttributeValue] = {"num_heads": HEADS, "hash_bits": 5, "hash": hashing}
    _, importance = run("yoso", inputs, shared | {"importance": "first"}, threads=3)
    np.testing.assert_allclose(importance, expected(inputs, **shared), rtol=1e-6, atol=0)


@pytest.mark.parametrize("num_hashes", [0, 8])
def test_it_is_the_first_rows_share_of_hashes(num_hashes: int) -> None:
    """A key equal to the first query collides in every hash of every head; its opposite in none."""
    inputs = yoso_inputs((40,), (num_hashes,))
    inputs["key"][7], inputs["key"][9] = inputs["query"][0], -inputs["query"][0]
    _, importance = run("yoso", inputs, {"num_heads": HEADS, "hash_bits": 6, "importance": "first"})
    assert importance[7] == pytest.approx(HEADS, rel=1e-4)
    assert importance[9] == pytest.approx(0, abs=1e-6)
    assert ((importance >= 0) & (importance <= HEADS * (1 + 1e-6))).all()


@pytest.mark.parametrize("num_hashes", [0, 8])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_sequence_that_is_not_finite_has_no_importance(name: str, num_hashes: int) -> None:
    inputs = yoso_inputs((30, 40), (num_hashes, num_hashes))
    attributes: dict[str, AttributeValue] = {"num_heads": HEADS, "hash_bits": 6, "importance": "first"}
    clean = run("yoso", inputs, attributes)[1]
    inputs[name][33, 2] = np.nan
    importance = run("yoso", inputs, attributes)[1]
    assert np.isnan(importance[30:]).all()
    assert same_bits([importance[:30]], [clean[:30]])


def test_no_attribute_no_output() -> None:
    inputs = yoso_inputs((5,), (2,))
    assert len(run("yoso", inputs, {"num_heads": HEADS, "hash_bits": 6})) == 1
    with pytest.raises(RuntimeException, match="importance is 'maximum', must be one of: none, first"):
        run("yoso", inputs, {"num_heads": HEADS, "hash_bits": 6, "importance": "maximum"})


def on_both(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str) -> tuple[Array, Array]:
    """Importance on the test device and on the CPU; the device's output is the same with it and without it."""
    asked = attributes | {"importance": "first"}
    output, importance = run_on_device("yoso", inputs, asked, data)
    assert same_bits([output], run_on_device("yoso", inputs, attributes, data))
    return importance, run("yoso", inputs, asked)[1]


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("hashing", ["gaussian", "hadamard"])
@pytest.mark.parametrize("hash_bits", [4, 9])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_collisions_on_cuda_are_the_cpus(queries: str, hash_bits: int, hashing: str, data: str) -> None:
    inputs = yoso_inputs((1, 0, 9, 40), (5, 3, 16, 33), queries == "first", data=data)
    attributes: dict[str, AttributeValue] = {
        "num_heads": HEADS, "hash_bits": hash_bits, "hash": hashing, "queries": queries
    }  # fmt: skip
    assert same_bits(*([importance] for importance in on_both(inputs, attributes, data)))


@pytest.mark.parametrize("hash_bits", [3, 9])
@pytest.mark.parametrize("hashing", ["gaussian", "hadamard"])
def test_collisions_in_tables_on_cuda_are_the_cpus(hashing: str, hash_bits: int) -> None:
    inputs = yoso_inputs((300, 3), (2, 2), head_dim=8, value_dim=8)
    attributes: dict[str, AttributeValue] = {"num_heads": HEADS, "hash_bits": hash_bits, "hash": hashing}
    assert same_bits(*([importance] for importance in on_both(inputs, attributes, "float")))


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("queries", ["all", "first"])
def test_expected_collisions_on_cuda(queries: str, data: str) -> None:
    inputs = yoso_inputs((1, 0, 9, 40), (0, 0, 0, 0), queries == "first", data=data)
    actual, reference = on_both(inputs, {"num_heads": HEADS, "hash_bits": 6, "queries": queries}, data)
    np.testing.assert_allclose(actual, reference, rtol=2e-5, atol=1e-6)


def test_a_sequence_that_is_not_finite_has_no_importance_on_cuda() -> None:
    inputs = yoso_inputs((9, 7, 5), (4, 0, 4))
    inputs["key"][10, 3], inputs["value"][18, 1] = np.inf, np.nan
    importance = run_on_device("yoso", inputs, {"num_heads": HEADS, "hash_bits": 6, "importance": "first"})[1]
    assert np.isfinite(importance[:9]).all()
    assert np.isnan(importance[9:]).all()
