"""YosoAttention's tables of int16 around every length at which passes stop being added up in 16 bits together.

Keys that all share a bucket, values at the limits of their columns: sums as large as they get before they are widened.
"""

from pathlib import Path

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, in_process, isa, offsets, run
from instruction_sets import ISAS

from attenuator.ops.yoso.reference import Hash, head_weights, rounded_values
from attenuator.ops.yoso.rule import ROUNDED_HIGH, SHORT_KEYS, SMALLEST_COLUMN, rounds

LOWER = ISAS[: ISAS.index(isa())]
NUM_HASHES = (1, 2, 3, 5, 6, 7, 9, 33, 66)  # in passes of every size; 66 are two chunks or more
# hash_bits (4, 2 or 1 tables a pass), head_dim, value_dim, hash
SHAPES: list[tuple[int, int, int, Hash]] = [
    (4, 8, 8, "gaussian"),
    (8, 33, 9, "gaussian"),
    (3, 31, 40, "gaussian"),
    (9, 9, 8, "gaussian"),
    (11, 15, 8, "gaussian"),
    (5, 8, 10, "hadamard"),
]
LIMITS = np.array([1, -1, 3e30, -1e-25, 1e-35], np.float32)


def attributes_of(shape: tuple[int, int, int, Hash], normalize: int) -> dict[str, AttributeValue]:
    hash_bits, _, _, hash = shape
    return {"num_heads": 1, "hash_bits": hash_bits, "hash": hash, "normalize": normalize, "table_precision": "int16"}


def inputs_of(shape: tuple[int, int, int, Hash]) -> dict[str, Array]:
    """A ragged batch: the two lengths about each share of SHORT_KEYS, for each number of hashes.

    All keys of a sequence are alike but in every third, where one or two, and their values, are the opposite of the
    others. From the fifth column on values have any size.
    """
    hash_bits, head_dim, value_dim, _ = shape
    rng = np.random.default_rng([hash_bits, head_dim])
    pairs = [
        (length, num_hashes)
        for num_hashes in NUM_HASHES
        for length in sorted({SHORT_KEYS // tables + more for tables in range(1, num_hashes + 1) for more in (0, 1)})
        if rounds(length, length, num_hashes, hash_bits, value_dim)
    ]
    pairs = [pairs[i] for i in rng.permutation(len(pairs))]
    keys, values = [], []
    for b, (length, _) in enumerate(pairs):
        key = np.tile(rng.standard_normal(head_dim).astype(np.float32), (length, 1))
        value = np.tile(np.resize(LIMITS, value_dim), (length, 1))
        value[:, 4:] *= rng.uniform(-1, 1, value[:, 4:].shape).astype(np.float32)
        if b % 3 == 1:
            opposite = slice(length // 2, length // 2 + 1 + b % 2)
            key[opposite] *= -1
            value[opposite] *= -1
        keys.append(key)
        values.append(value)
    return {
        "query": np.concatenate(keys), "key": np.concatenate(keys), "value": np.concatenate(values),
        "cu_seqlens": offsets([length for length, _ in pairs]),
        "num_hashes": np.array([num_hashes for _, num_hashes in pairs], np.int32),
        "seed": rng.integers(0, 2**53, len(pairs)),
    }  # fmt: skip


def outputs() -> list[Array]:
    """Of every shape and normalisation, in this process."""
    return [
        run("yoso", inputs_of(shape), attributes_of(shape, normalize))[0] for shape in SHAPES for normalize in range(3)
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_exact_and_rows_within_their_bound(shape: tuple[int, int, int, Hash]) -> None:
    """No sum is off by one step: 1 of 127 * n * m of the largest there are."""
    inputs, attributes = inputs_of(shape), attributes_of(shape, 0)
    actual = run("yoso", inputs, attributes)[0]
    assert same_bits([actual], run("yoso", inputs, attributes, threads=2))
    for b, (start, end) in enumerate(zip(inputs["cu_seqlens"][:-1], inputs["cu_seqlens"][1:], strict=True)):
        rows = actual[start:end]
        value = inputs["value"][start:end]
        weights = head_weights(
            inputs["query"][start:end], inputs["key"][start:end], num_hashes=int(inputs["num_hashes"][b]),
            seed=int(inputs["seed"][b]), layer=0, head=0, hash_bits=shape[0], hash=shape[3],
        )  # fmt: skip
        largest = np.maximum(np.abs(value).max(axis=0).astype(np.float64), SMALLEST_COLUMN)
        expected = weights @ rounded_values(value)
        assert (np.abs(rows - expected) <= 3e-7 * np.abs(expected) + 1e-12 * len(value) * largest).all()
        plain = weights @ value.astype(np.float64)
        half_steps = weights.sum(axis=1)[:, None] * largest / (2 * ROUNDED_HIGH)
        assert (np.abs(rows - plain) <= half_steps * (1 + 1e-5) + 3e-7 * np.abs(plain)).all()


@pytest.mark.parametrize("lower", LOWER)
def test_bits_are_those_of_the_best_instruction_set(lower: str, tmp_path: Path) -> None:
    script = "import sys, numpy, test_yoso_runs\nnumpy.savez(sys.argv[1], *test_yoso_runs.outputs())"
    done = in_process(script, str(tmp_path / "outputs.npz"), ATTENUATOR_ISA=lower)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "outputs.npz") as archive:
        assert same_bits([archive[name] for name in archive.files], outputs())
