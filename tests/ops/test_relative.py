"""RelativeAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
from harness import run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from relative_cases import CHOICES, LENGTHS, attention_inputs

from attenuator.ops.relative.reference import relative_attention


def check(inputs: dict[str, np.ndarray], threads: int = 2, **attributes: object) -> np.ndarray:
    [output] = run("relative", inputs, attributes, threads)
    np.testing.assert_allclose(output, relative_attention(**inputs, **attributes)[0], rtol=0, atol=6e-6)
    return output


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "value_dim"),
    [(1, 8, 8), (3, 9, 15), (4, 31, 33), (12, 64, 64), (2, 100, 24), (1, 255, 127), (1, 256, 256)],
)
def test_equals_the_reference(heads: int, head_dim: int, value_dim: int, queries: str) -> None:
    check(
        attention_inputs(LENGTHS, heads, head_dim, value_dim, first=queries == "first"),
        num_heads=heads,
        queries=queries,
    )


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("tables", CHOICES, ids="-".join)
def test_any_tables(tables: tuple[str, ...], queries: str) -> None:
    inputs = attention_inputs((70, 5, 1), 2, 16, 20, tables, first=queries == "first")
    check(inputs, num_heads=2, queries=queries, scale=0.2)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1 / 12, 1e-3, -0.5, 100.0])
def test_any_scale(scale: float) -> None:
    """Scales that exp takes, and those that multiply the queries instead."""
    inputs = attention_inputs((33, 4), 2, 16, 16)
    for name in ("query", "key", "pos_key", "pos_query"):
        inputs[name] *= np.float32(0.3)
    for queries in ("all", "first"):
        query = inputs["query"] if queries == "all" else inputs["query"][[0, 33]]
        [output] = run("relative", inputs | {"query": query}, {"num_heads": 2, "queries": queries, "scale": scale})
        expected, _ = relative_attention(**inputs | {"query": query}, num_heads=2, queries=queries, scale=scale)
        np.testing.assert_allclose(output, expected, rtol=0, atol=3e-5)


def test_without_tables_it_is_softmax_attention() -> None:
    inputs = attention_inputs((100, 7, 64), 3, 24, 24, ())
    [output] = run("relative", inputs, {"num_heads": 3, "scale": 0.3})
    plain = {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}
    [softmax] = run("softmax", plain, {"num_heads": 3, "scale": 0.3})
    np.testing.assert_allclose(output, softmax, rtol=0, atol=1e-6)


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("reach", [0, 1, 7, 300])
def test_distances_beyond_reach_count_as_reach(reach: int, queries: str) -> None:
    inputs = attention_inputs((130, 2), 2, 8, 8, reach=max(reach, 1), first=queries == "first")
    middle = len(inputs["buckets"]) // 2
    inputs["buckets"] = inputs["buckets"][middle - reach : middle + reach + 1]
    check(inputs, num_heads=2, queries=queries)


@pytest.mark.parametrize("queries", ["all", "first"])
def test_positions_of_every_row_are_row_indices(queries: str) -> None:
    inputs = attention_inputs(LENGTHS, 2, 16, 24, first=queries == "first")
    attributes = {"num_heads": 2, "queries": queries}
    counted = np.concatenate([np.arange(length) + 5 for length in LENGTHS])
    [without] = run("relative", inputs, attributes)
    [output] = run("relative", inputs | {"positions": counted}, attributes)
    assert output.tobytes() == without.tobytes()


@pytest.mark.parametrize("queries", ["all", "first"])
def test_positions_with_gaps(queries: str) -> None:
    inputs = attention_inputs(LENGTHS, 2, 16, 24, first=queries == "first")
    rng = np.random.default_rng(1)
    inputs["positions"] = np.concatenate([rng.integers(1, 6, length).cumsum() for length in LENGTHS])
    check(inputs, num_heads=2, queries=queries)


@pytest.mark.parametrize("queries", ["all", "first"])
def test_positions_of_any_size(queries: str) -> None:
    inputs = attention_inputs((70, 4), 2, 8, 8, first=queries == "first")
    limits = np.iinfo(np.int64)
    far = np.concatenate([np.arange(70) * 2**40 - 2**45, [limits.min, -1, 0, limits.max]])
    near = np.concatenate([np.arange(70) * 60, [0, 60, 120, 180]])  # beyond the reach as well
    attributes = {"num_heads": 2, "queries": queries}
    outputs = [run("relative", inputs | {"positions": positions}, attributes)[0] for positions in (far, near)]
    rows = slice(0, 1) if queries == "first" else slice(0, 70)
    assert outputs[0][rows].tobytes() == outputs[1][rows].tobytes()
    assert np.isfinite(outputs[0]).all()


@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("importance", ["first", "maximum"])
def test_importance_is_what_the_reference_says(importance: str, queries: str) -> None:
    inputs = attention_inputs(LENGTHS, 3, 16, 24, first=queries == "first")
    attributes = {"num_heads": 3, "queries": queries, "importance": importance}
    output, of_keys = run("relative", inputs, attributes, threads=2)
    _, expected = relative_attention(**inputs, **attributes)
    np.testing.assert_allclose(of_keys, expected, rtol=0, atol=3e-6)
    [without] = run("relative", inputs, {"num_heads": 3, "queries": queries})
    assert output.tobytes() == without.tobytes()


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    inputs = attention_inputs((5, 3), 2, 8, 8)

    def refused(**changes: np.ndarray | None) -> str:
        changed = {name: value for name, value in (inputs | changes).items() if value is not None}
        with pytest.raises(InvalidArgument) as caught:
            run("relative", changed, {"num_heads": 2})
        return str(caught.value).split("RelativeAttention: ")[1]

    buckets = inputs["buckets"]
    assert refused(buckets=None).startswith("input buckets is missing, must be passed with pos_key, pos_query or bias")
    assert refused(buckets=buckets[1:]).startswith("buckets has size 100, must be odd")
    assert refused(buckets=buckets - 1).startswith("buckets[0] is -1, must be in [0, 39]")
    assert refused(buckets=buckets + 1).startswith("buckets[98] is 40, must be in [0, 39]")
    assert refused(bias=inputs["bias"][:, :1].copy()).startswith("bias has size 1 on axis 1, must be 2 (num_heads")
    assert refused(pos_query=inputs["pos_query"][1:]).startswith("pos_query has size 39 on axis 0, must be 40")
    assert refused(positions=np.arange(7)).startswith("positions has size 7 on axis 0, must be 8 (the number of rows")
    assert refused(positions=np.zeros(8, np.int64)).startswith("positions[1] is 0, must be above positions[0] = 0")
