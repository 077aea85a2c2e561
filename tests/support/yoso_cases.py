"""Inputs of YosoAttention, and its comparison with the reference."""

from collections.abc import Callable

import numpy as np
from harness import Array, AttributeValue, offsets, run

from attenuator.ops.yoso.reference import Hash, codes

Call = Callable[[str, dict[str, Array], dict[str, AttributeValue]], list[Array]]
HASHES: tuple[Hash, ...] = ("gaussian", "hadamard")
LENGTHS = (0, 1, 7, 0, 65, 190, 501)  # count path and table path


def make(
    lengths: tuple[int, ...],
    num_heads: int = 2,
    head_dim: int = 16,
    value_dim: int = 12,
    num_hashes: object = 4,
    queries: str = "all",
    taps: int = 0,
) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    rows, batch = sum(lengths), len(lengths)

    def draw(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    inputs = {
        "query": draw(batch if queries == "first" else rows, num_heads * head_dim),
        "key": draw(rows, num_heads * head_dim) + np.float32(0.4),
        "value": draw(rows, num_heads * value_dim),
        "cu_seqlens": offsets(lengths),
        "num_hashes": np.resize(np.asarray(num_hashes, np.int32), batch),
        "seed": rng.integers(0, 2**53, batch),
    }
    if taps:
        inputs["conv_weight"] = draw(num_heads, taps)
    return inputs


def fresh(lengths: tuple[int, ...], *shape: int, **rest: object) -> dict[str, Array]:
    """Inputs whose rows differ in length by a factor of four."""
    inputs = make(lengths, *shape, **rest)  # type: ignore[arg-type]
    rng = np.random.default_rng([len(lengths), *shape])
    for name in ("query", "key"):
        inputs[name] *= rng.uniform(0.4, 1.6, (len(inputs[name]), 1)).astype(np.float32)
    return inputs


def lengthy_rows(head_dim: int, length: int) -> Array:
    """Rows of every size beside a bound of 3: none, one that rounds away, about it, far beyond."""
    rng = np.random.default_rng([head_dim, length])
    sizes = np.resize([0, 1e-45, 1e-30, 1e-20, 1e-6, 1e-3, 0.1, 0.5, 1, 1.7, 1.74, 2, 30, 1e10, 3e37], (length, 1))
    rows = rng.standard_normal((length, head_dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True) * sizes).astype(np.float32)


def relative(actual: Array, expected: Array) -> float:
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1e-30))


def collisions(
    query: Array, key: Array, num_hashes: int, hash_bits: int, hash: Hash, layer: int = 0, call: Call = run
) -> Array:
    """`[n, n]` exact collision counts as the operator sees them, through values that are unit vectors; seed 5."""
    attributes = {"num_heads": 1, "hash_bits": hash_bits, "hash": hash, "normalize": 0, "layer": layer}
    length, width = len(query), 256
    counts = np.zeros((length, length))
    for start in range(0, length, width):
        value = np.eye(length, width, -start, np.float32)
        inputs = {
            "query": query, "key": key, "value": value, "cu_seqlens": offsets([length]),
            "num_hashes": np.array([num_hashes], np.int32), "seed": np.array([5]),
        }  # fmt: skip
        output = call("yoso", inputs, attributes)[0]
        counts[:, start : start + width] = (output * num_hashes)[:, : length - start]
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-3)
    return np.rint(counts).astype(np.int64)


def check_codes(
    hash: Hash, head_dim: int, hash_bits: int, num_hashes: int, length: int, layer: int = 0, call: Call = run
) -> None:
    """Holds the operator's collisions of rows that lie near one another against the reference's codes."""
    rng = np.random.default_rng(head_dim)
    key = rng.standard_normal((length, head_dim)).astype(np.float32)
    query = key + rng.uniform(0, 1, (length, 1)).astype(np.float32) * rng.standard_normal(key.shape).astype(np.float32)
    query_codes, key_codes = (codes(rows, 5, layer, 0, num_hashes, hash_bits, hash) for rows in (query, key))
    expected = sum((query_codes[:, t, None] == key_codes[None, :, t]).astype(np.int64) for t in range(num_hashes))
    assert np.array_equal(collisions(query, key, num_hashes, hash_bits, hash, layer, call), expected)
