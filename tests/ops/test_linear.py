"""LinearAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
from harness import offsets, run

from attenuator.ops.linear.reference import linear_attention

LENGTHS = (3, 0, 1, 64, 65, 300, 0, 17)


def attention_inputs(
    lengths: tuple[int, ...], heads: int, head_dim: int, value_dim: int, first: bool = False, scale: float = 1.0
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([heads, head_dim, value_dim])

    def rows(count: int, columns: int) -> np.ndarray:
        return (scale * rng.standard_normal((count, columns))).astype(np.float32)

    total = sum(lengths)
    return {
        "query": rows(len(lengths) if first else total, heads * head_dim),
        "key": rows(total, heads * head_dim),
        "value": rows(total, heads * value_dim),
        "cu_seqlens": offsets(lengths),
    }


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "value_dim"),
    [(1, 8, 8), (3, 9, 15), (2, 16, 16), (4, 31, 33), (12, 64, 64), (2, 100, 24), (1, 255, 127), (1, 256, 256)],
)
def test_equals_the_reference(heads: int, head_dim: int, value_dim: int, queries: str) -> None:
    inputs = attention_inputs(LENGTHS, heads, head_dim, value_dim, queries == "first")
    [output] = run("linear", inputs, {"num_heads": heads, "queries": queries}, threads=2)
    np.testing.assert_allclose(output, linear_attention(**inputs, num_heads=heads, queries=queries), atol=2e-6)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("length", [1023, 1024, 1025, 2048, 5000])
def test_chunks_of_a_long_sequence_add_up(length: int, queries: str) -> None:
    inputs = attention_inputs((7, length, 5), 2, 24, 40, queries == "first")
    attributes = {"num_heads": 2, "queries": queries}
    outputs = [run("linear", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    np.testing.assert_allclose(outputs[0], linear_attention(**inputs, num_heads=2, queries=queries), atol=2e-6)


@pytest.mark.parametrize("scale", [1e-30, 0.01, 10.0, 1e6])
def test_features_of_any_size(scale: float) -> None:
    """Output rows are means of values, whatever the size of queries and keys."""
    inputs = attention_inputs((40, 3), 2, 16, 16)
    inputs["query"] *= np.float32(scale)
    inputs["key"] *= np.float32(scale)
    [output] = run("linear", inputs, {"num_heads": 2})
    np.testing.assert_allclose(output, linear_attention(**inputs, num_heads=2), atol=5e-6)


def test_one_token_gets_its_own_value() -> None:
    inputs = attention_inputs((1,), 2, 16, 16)
    [output] = run("linear", inputs, {"num_heads": 2})
    np.testing.assert_allclose(output, inputs["value"], rtol=1e-6)


def test_features_that_are_too_small_for_float32_count_as_zero() -> None:
    inputs = attention_inputs((5, 4), 1, 8, 8)
    inputs["key"][:5] = -100
    [output] = run("linear", inputs, {"num_heads": 1})
    assert not output[:5].any()
    np.testing.assert_allclose(output[5:], linear_attention(**inputs, num_heads=1)[5:], atol=2e-6)
