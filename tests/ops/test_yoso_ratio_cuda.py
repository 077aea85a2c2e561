"""YosoAttention divided by its collisions and with the norm lift on the CUDA test device."""

import numpy as np
import pytest
from cases import same_bits
from harness import AttributeValue, offsets, run
from harness_cuda import run_on_device
from yoso_cases import HASHES, fresh, lengthy_rows, make, relative

from attenuator.ops.yoso.reference import Hash, yoso_attention

# heads, head_dim, value_dim, hash_bits, hash, queries, taps: every size of Hadamard blocks, both sizes of codes
SHAPES = [
    (2, 64, 64, 8, "gaussian", "all", 0),
    (1, 20, 20, 8, "hadamard", "all", 5),
    (2, 33, 9, 3, "hadamard", "first", 0),
    (1, 100, 31, 9, "gaussian", "first", 3),
    (1, 200, 12, 2, "hadamard", "all", 0),
    (1, 96, 100, 9, "hadamard", "all", 7),
]
KINDS = [(2, 0.0), (2, 1.0), (0, 40.0)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"normalize{kind[0]}-lift{kind[1]}")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_equals_the_reference(shape: tuple[int, int, int, int, Hash, str, int], kind: tuple[int, float]) -> None:
    """Pairs, tables (the last sequence) and the expectation."""
    num_heads, head_dim, value_dim, hash_bits, hash, queries, taps = shape
    inputs = fresh(
        (0, 1, 7, 65, 300), num_heads, head_dim, value_dim, num_hashes=(3, 5, 0, 9, 2), queries=queries, taps=taps
    )
    attributes: dict[str, AttributeValue] = {
        "num_heads": num_heads, "hash_bits": hash_bits, "layer": 3, "hash": hash, "queries": queries,
        "normalize": kind[0], "norm_lift": kind[1] * head_dim,
    }  # fmt: skip
    [actual] = run_on_device("yoso", inputs, attributes, "float")
    assert relative(actual, yoso_attention(**inputs, **attributes)) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("hash", HASHES)
def test_lifted_codes_are_the_cpus(hash: Hash) -> None:
    """Values of powers of two add up exactly, so that equal collisions are equal bits."""
    length = 45
    value = np.zeros((length, 16), np.float32)
    value[np.arange(length), np.arange(length) % 16] = 2.0 ** (np.arange(length) // 16)
    inputs = {
        "query": lengthy_rows(64, length), "key": lengthy_rows(64, length)[::-1].copy(), "value": value,
        "cu_seqlens": offsets([length]), "num_hashes": np.array([33], np.int32), "seed": np.array([11]),
    }  # fmt: skip
    attributes: dict[str, AttributeValue] = {
        "num_heads": 1, "hash_bits": 7, "hash": hash, "normalize": 0, "norm_lift": 3.0
    }  # fmt: skip
    assert same_bits(run_on_device("yoso", inputs, attributes, "float"), run("yoso", inputs, attributes))


def test_neighbours_change_no_bit() -> None:
    inputs = fresh((300, 40), 1, 16, 16, num_hashes=(3, 4))
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 6, "normalize": 2, "norm_lift": 12.0}
    [together] = run_on_device("yoso", inputs, attributes, "float")
    alone = {name: x[300:] if x.ndim == 2 else x[1:] for name, x in inputs.items()} | {"cu_seqlens": offsets([40])}
    assert same_bits(run_on_device("yoso", alone, attributes, "float"), [together[300:]])


def test_importance_of_shares_is_refused_by_name() -> None:
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 6, "normalize": 2, "importance": "first"}
    with pytest.raises(Exception, match="attribute importance is 'first' beside a normalize of 2"):
        run_on_device("yoso", make((3,), 1, 8, 8, 2), attributes, "float")
