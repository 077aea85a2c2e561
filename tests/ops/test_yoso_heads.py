"""Heads of a long sequence, whose rows are hashed together: each is what it is where every head is hashed alone."""

import numpy as np
import pytest
from harness import Array, AttributeValue, run
from yoso_cases import make

LENGTH = 1100  # with 12 heads hashed together, with 11 not: see HashesHeadsTogether of ops/yoso/operator.cc

CASES: dict[str, tuple[int, int, dict[str, AttributeValue]]] = {  # head_dim, num_hashes, attributes
    "gaussian": (64, 16, {"hash_bits": 8, "normalize": 1}),
    "hadamard": (64, 13, {"hash_bits": 7, "hash": "hadamard", "normalize": 2}),
    "chunks": (128, 40, {"hash_bits": 10, "normalize": 2, "norm_lift": 60.0}),
    "rounded": (64, 16, {"hash_bits": 8, "table_precision": "int16"}),
    "groups": (128, 130, {"hash_bits": 9, "hash": "hadamard", "normalize": 0, "norm_lift": 60.0}),
    "alone": (128, 500, {"hash_bits": 9, "normalize": 1}),
}


def of_heads(inputs: dict[str, Array], heads: int, head_dim: int, value_dim: int) -> dict[str, Array]:
    """The same inputs with the first `heads` heads alone."""
    columns = {"query": head_dim, "key": head_dim, "value": value_dim}
    return inputs | {name: inputs[name][:, : heads * width] for name, width in columns.items()}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_heads_hashed_together_change_no_bit(name: str, threads: int) -> None:
    head_dim, num_hashes, attributes = CASES[name]
    inputs = make((3, LENGTH), 12, head_dim, 16, num_hashes)
    with_weights = attributes | {"num_heads": 12, "importance": "first"}
    together, weights = run("yoso", inputs, with_weights, threads)
    (alone,) = run("yoso", of_heads(inputs, 11, head_dim, 16), attributes | {"num_heads": 11}, threads)
    np.testing.assert_array_equal(together[:, : alone.shape[1]], alone)
    assert np.abs(together[:, alone.shape[1] :]).sum() > 0  # the last head's columns
    assert weights[3:].max() > 0

    inputs["key"][LENGTH - 1, -1] = np.nan
    broken, weights = run("yoso", inputs, with_weights, threads)
    assert np.isnan(broken[3:]).all()
    assert np.isnan(weights[3:]).all()
    np.testing.assert_array_equal(broken[:3], together[:3])
