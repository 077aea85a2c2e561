"""LongShortAttention against its NumPy reference; what every operator promises is in test_operator.py."""

from typing import Any

import numpy as np
import pytest
from harness import offsets, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.longshort.reference import longshort_attention

LENGTHS = (3, 0, 1, 64, 65, 300, 0, 17)
WINDOWS = (0, 5, 1, 1, 2, 7, 3, 65536)


def attention_inputs(
    lengths: tuple[int, ...],
    windows: tuple[int, ...],
    heads: int,
    dims: tuple[int, int],
    r: int,
    *,
    first: bool = False,
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([heads, *dims, r])

    def rows(count: int, columns: int) -> np.ndarray:
        return rng.standard_normal((count, columns)).astype(np.float32)

    total, (head_dim, value_dim) = sum(lengths), dims
    return {
        "query": rows(len(lengths) if first else total, heads * head_dim),
        "key": 3 + 2 * rows(total, heads * head_dim),  # far from norm 1
        "value": rows(total, heads * value_dim) - 1,
        "cu_seqlens": offsets(lengths),
        "window": np.array(windows, np.int32),
        "dynamic_projection": rows(heads * r, head_dim) / 4,
        "local_key_norm": rows(2, heads * head_dim),
        "local_value_norm": rows(2, heads * value_dim),
        "global_key_norm": rows(2, heads * head_dim),
        "global_value_norm": rows(2, heads * value_dim),
    }


def check(inputs: dict[str, np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    outputs = [run("longshort", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    np.testing.assert_allclose(outputs[0], longshort_attention(**inputs, **attributes), atol=2e-5)
    return outputs[0]


@pytest.mark.parametrize("trained", [1, 4, 64, 2**30])
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(
    ("heads", "dims", "r"),
    [(1, (8, 8), 1), (3, (9, 15), 7), (2, (16, 24), 64), (4, (31, 33), 65), (2, (64, 64), 130), (1, (256, 255), 20)],
)
def test_equals_the_reference(heads: int, dims: tuple[int, int], r: int, queries: str, trained: int) -> None:
    inputs = attention_inputs(LENGTHS, WINDOWS, heads, dims, r, first=queries == "first")
    check(inputs, {"num_heads": heads, "queries": queries, "trained_window": trained})


@pytest.mark.parametrize(("length", "window"), [(1024, 63), (1025, 64), (1500, 700), (2100, 0), (1300, 1)])
def test_a_long_sequence_is_computed_in_slices(length: int, window: int) -> None:
    inputs = attention_inputs((7, length, 5), (2, window, 3), 2, (24, 40), 33)
    check(inputs, {"num_heads": 2, "trained_window": 300, "scale": 0.4, "epsilon": 0.01})


def test_the_knob_bounds_the_window_from_above() -> None:
    inputs = attention_inputs((200, 200, 200, 200), (0, 20, 50, 8), 2, (16, 16), 4)
    for name in ("query", "key", "value"):
        inputs[name][200:] = np.tile(inputs[name][:200], (3, 1))
    output = check(inputs, {"num_heads": 2, "trained_window": 20})
    trained, same, wider, narrower = np.split(output, 4)
    assert trained.tobytes() == same.tobytes() == wider.tobytes()
    [of_eight] = run("longshort", inputs, {"num_heads": 2, "trained_window": 8})
    assert narrower.tobytes() == of_eight[600:].tobytes() != trained.tobytes()


def test_mixtures_without_a_preference_are_means() -> None:
    """With W_P = 0 each mixture is the mean of the sequence; a window of 1 sees no more than it and the neighbours."""
    inputs = attention_inputs((50,), (1,), 1, (8, 8), 3)
    inputs["dynamic_projection"][:] = 0
    output = check(inputs, {"num_heads": 1})
    far = {name: array.copy() for name, array in inputs.items()}
    far["key"][30:] = far["key"][30:][::-1]  # leaves the mean as it is
    far["value"][30:] = far["value"][30:][::-1]
    np.testing.assert_allclose(check(far, {"num_heads": 1})[:29], output[:29], atol=1e-5)


@pytest.mark.parametrize("factor", [1e17, 1e19, 1e30])
def test_norms_hold_for_rows_whose_squares_overflow(factor: float) -> None:
    inputs = attention_inputs((70, 1, 9), (0, 0, 3), 2, (24, 15), 4)
    for name in ("key", "value"):
        inputs[name] *= np.float32(factor)
        inputs[name][5] /= np.float32(factor)  # rows of any size beside each other
    check(inputs, {"num_heads": 2})


@pytest.mark.parametrize("largest", [1e38, -3.4e38])
def test_norms_hold_for_rows_whose_sums_overflow(largest: float) -> None:
    inputs = attention_inputs((1, 1), (0, 0), 2, (24, 16), 4)
    inputs["value"][0] = largest  # equal elements, of which a norm leaves its term
    inputs["value"][1] = largest * np.linspace(1, 0.25, 32)
    check(inputs, {"num_heads": 2})


@pytest.mark.parametrize("width", [9, 15, 24, 63, 255])
@pytest.mark.parametrize("element", [1.1e3, 7.1e6, 1.1e30])
def test_norms_leave_the_terms_of_equal_elements(width: int, element: float) -> None:
    """Of large ones as well, at widths of which no float is the share."""
    inputs = attention_inputs((3, 1), (0, 0), 2, (24, width), 4)
    inputs["value"][:] = element
    output = check(inputs, {"num_heads": 2})
    inputs["value"][:] = 0
    np.testing.assert_allclose(output, longshort_attention(**inputs, num_heads=2), atol=2e-5)


def test_weights_that_do_not_fit_are_refused() -> None:
    inputs = attention_inputs((4, 9), (0, 0), 2, (16, 16), 3)
    wrong = inputs | {"local_value_norm": np.ones((3, 32), np.float32)}
    with pytest.raises(
        InvalidArgument, match=r"local_value_norm has size 3 on axis 0, must be 2 \(factors and terms\)"
    ):
        run("longshort", wrong, {"num_heads": 2})
    wrong = inputs | {"dynamic_projection": np.ones((5, 16), np.float32)}
    with pytest.raises(
        InvalidArgument, match="dynamic_projection has 5 rows, must have a positive multiple of num_heads"
    ):
        run("longshort", wrong, {"num_heads": 2})
