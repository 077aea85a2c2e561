"""LinformerAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
from harness import offsets, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.linformer.reference import linformer_attention

LENGTHS = (3, 0, 1, 64, 65, 300, 0, 17)


def attention_inputs(
    lengths: tuple[int, ...], heads: int, dims: tuple[int, int], k: int, *, first: bool = False, own: bool = False
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([heads, *dims, k])

    def rows(count: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal((count, columns))).astype(np.float32)

    total, longest = sum(lengths), max(lengths) + 5
    inputs = {
        "query": rows(len(lengths) if first else total, heads * dims[0]),
        "key": rows(total, heads * dims[0]),
        "value": rows(total, heads * dims[1]),
        "cu_seqlens": offsets(lengths),
        "key_projection": rows(heads * k, longest, 0.2),
    }
    return inputs | ({"value_projection": rows(heads * k, longest, 0.2)} if own else {})


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(
    ("heads", "dims", "k"),
    [(1, (8, 8), 1), (3, (9, 15), 7), (2, (16, 24), 64), (4, (31, 33), 65), (12, (64, 64), 256), (1, (256, 255), 20)],
)
def test_equals_the_reference(heads: int, dims: tuple[int, int], k: int, queries: str, own: bool) -> None:
    inputs = attention_inputs(LENGTHS, heads, dims, k, first=queries == "first", own=own)
    [output] = run("linformer", inputs, {"num_heads": heads, "queries": queries}, threads=2)
    expected = linformer_attention(**inputs, num_heads=heads, queries=queries)
    np.testing.assert_allclose(output, expected, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("length", [1024, 1025, 2100])
def test_a_long_sequence_is_computed_in_slices(length: int, queries: str) -> None:
    inputs = attention_inputs((7, length, 5), 2, (24, 40), 130, first=queries == "first", own=True)
    attributes = {"num_heads": 2, "queries": queries, "scale": 0.05}
    outputs = [run("linformer", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    expected = linformer_attention(**inputs, num_heads=2, queries=queries, scale=0.05)
    np.testing.assert_allclose(outputs[0], expected, atol=2e-5 * float(np.abs(expected).max()))


def test_columns_beyond_a_sequence_are_not_read() -> None:
    inputs = attention_inputs((40, 11), 2, (16, 16), 9)
    [output] = run("linformer", inputs, {"num_heads": 2})
    inputs["key_projection"][:, 40:] = np.nan
    [again] = run("linformer", inputs, {"num_heads": 2})
    assert output.tobytes() == again.tobytes()


def test_projections_that_choose_tokens_give_softmax_attention_over_them() -> None:
    """With E the identity the projected rows are the tokens; those that stay 0 share the softmax, as published."""
    inputs = attention_inputs((12,), 1, (16, 16), 12)
    inputs["key_projection"] = np.eye(12, dtype=np.float32)
    [output] = run("linformer", inputs, {"num_heads": 1})
    [exact] = run("softmax", {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}, {"num_heads": 1})
    np.testing.assert_allclose(output, exact, atol=1e-6)
    inputs["key_projection"] = np.eye(30, 12, dtype=np.float32)
    [diluted] = run("linformer", inputs, {"num_heads": 1})
    assert np.abs(diluted).mean() < np.abs(output).mean()


def test_what_the_projections_do_not_reach_is_refused() -> None:
    inputs = attention_inputs((4, 9), 2, (16, 16), 3)
    inputs["key_projection"] = inputs["key_projection"][:, :8].copy()
    sentence = "sequence 1 has 9 tokens, must have at most 8, the columns of key_projection"
    with pytest.raises(InvalidArgument, match=sentence):
        run("linformer", inputs, {"num_heads": 2})
    inputs["key_projection"] = np.zeros((5, 9), np.float32)
    with pytest.raises(
        InvalidArgument, match="key_projection has 5 rows, must have a positive multiple of num_heads = 2"
    ):
        run("linformer", inputs, {"num_heads": 2})
