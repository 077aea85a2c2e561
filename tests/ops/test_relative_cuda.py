"""RelativeAttention's CUDA kernels on the test device, against the CPU operator and the NumPy reference."""

import itertools

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, run
from harness_cuda import DATA_TYPES, run_on_device
from relative_cases import CHOICES, TABLES, attention_inputs

from attenuator.errors import EngineError
from attenuator.ops.relative.reference import relative_attention

# Of the largest magnitude of an output: rounding of the type, of the probabilities and of the output.
TOLERANCE = {"float": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
INTEGERS = ("cu_seqlens", "buckets", "positions")
KINDS = ("first", "maximum")
every_type = pytest.mark.parametrize("data", DATA_TYPES)
either_rows = pytest.mark.parametrize("queries", ["all", "first"])


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """The inputs as the device sees them, in float32."""
    return {
        name: value if name in INTEGERS else value.astype(DATA_TYPES[data]).astype(np.float32)
        for name, value in inputs.items()
    }


def gaps(lengths: tuple[int, ...], widest: int = 6) -> Array:
    """Positions of what is left of texts: they ascend by 1 to `widest`."""
    rng = np.random.default_rng(lengths)
    steps = [rng.integers(1, widest + 1, length).cumsum() for length in lengths]
    return np.concatenate([np.arange(0), *steps]).astype(np.int64)


def check(inputs: dict[str, Array], data: str, **attributes: AttributeValue) -> list[Array]:
    """Compares every output with the reference."""
    outputs = run_on_device("relative", inputs, attributes, data)
    reference = relative_attention(**rounded(inputs, data), **attributes)  # type: ignore[arg-type]
    size = max(1.0, np.abs(reference[0]).max(initial=0))
    np.testing.assert_allclose(outputs[0], reference[0], rtol=0, atol=TOLERANCE[data] * size)
    for importance in outputs[1:]:
        np.testing.assert_allclose(importance, reference[1], rtol=3e-5, atol=1e-6)
    return outputs


@every_type
@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(8, 8), (9, 31), (64, 64), (80, 48), (128, 128), (100, 256), (255, 12), (256, 256)]
)
def test_every_size_of_head(head_dim: int, value_dim: int, data: str) -> None:
    check(attention_inputs((40, 1, 67), 1, head_dim, value_dim), data, num_heads=1)


@either_rows
@pytest.mark.parametrize(
    ("tables", "data"), list(zip(CHOICES, itertools.cycle(DATA_TYPES), strict=False)), ids="-".join
)
def test_any_tables(tables: tuple[str, ...], data: str, queries: str) -> None:
    inputs = attention_inputs((70, 5, 0, 1), 2, 16, 20, tables, first=queries == "first")
    check(inputs, data, num_heads=2, queries=queries, scale=0.2)


@every_type
@either_rows
def test_without_tables_it_is_softmax_attention(queries: str, data: str) -> None:
    inputs = attention_inputs((70, 7), 2, 24, 24, (), first=queries == "first")
    plain = {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "scale": -0.3, "queries": queries}
    softmax = run_on_device("softmax", plain, attributes, data)
    assert same_bits(run_on_device("relative", inputs, attributes, data), softmax)


@every_type
@either_rows
@pytest.mark.parametrize("scale", [1 / 12, -0.5])
def test_any_scale(scale: float, queries: str, data: str) -> None:
    inputs = attention_inputs((33, 4), 2, 16, 16, first=queries == "first")
    for name in ("query", "key", "pos_key", "pos_query"):
        inputs[name] *= np.float32(0.5)
    check(inputs, data, num_heads=2, queries=queries, scale=scale)


@either_rows
@pytest.mark.parametrize(("reach", "data"), [(0, "float"), (1, "float16"), (7, "bfloat16"), (300, "float")])
def test_distances_beyond_reach_count_as_reach(reach: int, data: str, queries: str) -> None:
    inputs = attention_inputs((130, 2), 2, 8, 8, reach=max(reach, 1), first=queries == "first")
    middle = len(inputs["buckets"]) // 2
    inputs["buckets"] = inputs["buckets"][middle - reach : middle + reach + 1]
    check(inputs, data, num_heads=2, queries=queries)


@every_type
@pytest.mark.parametrize("head_dim", [64, 72])
def test_more_rows_of_tables_than_a_tile_takes(head_dim: int, data: str) -> None:
    """In any order: rows of neighbouring distances need not be neighbours."""
    lengths = (100, 3)
    inputs = attention_inputs(lengths, 1, head_dim, 8, rows=301, reach=150)
    inputs["positions"] = gaps(lengths)
    check(inputs, data, num_heads=1)
    inputs["buckets"] = np.random.default_rng(2).integers(0, 301, 301)
    check(inputs, data, num_heads=1)


@every_type
@either_rows
@pytest.mark.parametrize("importance", KINDS)
def test_importance_and_positions(importance: str, queries: str, data: str) -> None:
    lengths = (3, 0, 1, 64, 90)
    inputs = attention_inputs(lengths, 2, 24, 16, first=queries == "first")
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "queries": queries, "scale": 0.1}
    check(inputs, data, **attributes, importance=importance)
    inputs["positions"] = gaps(lengths)
    output, _ = check(inputs, data, **attributes, importance=importance)
    assert same_bits([output], run_on_device("relative", inputs, attributes, data))


@pytest.mark.parametrize("importance", KINDS)
@pytest.mark.parametrize("head_dim", [65, 200])
def test_importance_of_wide_heads(importance: str, head_dim: int) -> None:
    check(attention_inputs((70, 2), 1, head_dim, 8), "float", num_heads=1, importance=importance, scale=0.03)


@every_type
@either_rows
def test_positions_of_every_row_are_row_indices(queries: str, data: str) -> None:
    lengths = (70, 0, 1, 5)
    inputs = attention_inputs(lengths, 2, 16, 24, first=queries == "first")
    counted = np.concatenate([np.arange(length) + 5 for length in lengths])
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "queries": queries, "importance": "maximum"}
    without = run_on_device("relative", inputs, attributes, data)
    assert same_bits(run_on_device("relative", inputs | {"positions": counted}, attributes, data), without)


@either_rows
def test_positions_of_any_size(queries: str) -> None:
    inputs = attention_inputs((70, 4), 2, 8, 8, first=queries == "first")
    limits = np.iinfo(np.int64)
    inputs["positions"] = np.concatenate([np.arange(70) * 2**40 - 2**45, [limits.min, -1, 0, limits.max]])
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "queries": queries}
    on_cpu = run("relative", inputs, attributes)[0]
    np.testing.assert_allclose(run_on_device("relative", inputs, attributes)[0], on_cpu, rtol=0, atol=1e-5)


@every_type
@pytest.mark.parametrize("importance", KINDS)
def test_a_sequence_alone_gives_its_bits(importance: str, data: str) -> None:
    lengths = (17, 90, 1)
    inputs = attention_inputs(lengths, 2, 20, 12) | {"positions": gaps(lengths)}
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "importance": importance}
    together = run_on_device("relative", inputs, attributes, data)
    for b, length in enumerate(lengths):
        rows = slice(*inputs["cu_seqlens"][b : b + 2])
        per_token = {name: inputs[name][rows] for name in ("query", "key", "value", "positions")}
        alone = inputs | per_token | {"cu_seqlens": np.array([0, length], np.int32)}
        assert same_bits(run_on_device("relative", alone, attributes, data), [part[rows] for part in together])


@every_type
def test_any_order_of_threads(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (90, 9)
    inputs = attention_inputs(lengths, 1, 64, 64, rows=100) | {"positions": gaps(lengths)}
    results = []
    for order in ("forward", "backward", "1", "2"):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        results.append(run_on_device("relative", inputs, {"num_heads": 1, "importance": "maximum"}, data))
    assert all(same_bits(results[0], other) for other in results[1:])


@every_type
@pytest.mark.parametrize("name", TABLES)
def test_a_table_row_that_is_not_finite_reaches_the_rows_that_lead_to_it(name: str, data: str) -> None:
    lengths = (80, 3)
    inputs = attention_inputs(lengths, 1, 16, 8, rows=101)  # a row for each distance from -50 to 50
    inputs["buckets"] = np.arange(101)
    inputs[name][80] = np.nan  # of distance 30: rows 30 and on have a key so far before them
    nan = np.isnan(run_on_device("relative", inputs, {"num_heads": 1}, data)[0]).any(axis=1)
    assert nan.tolist() == [30 <= row < 80 for row in range(83)]


@every_type
def test_what_is_not_finite_stays_in_its_row_or_sequence(data: str) -> None:
    inputs = attention_inputs((70, 20, 5), 1, 16, 8)
    inputs["query"][3, 2] = np.nan
    inputs["key"][70 + 8, 1] = np.nan
    nan = np.isnan(run_on_device("relative", inputs, {"num_heads": 1}, data)[0]).any(axis=1)
    assert nan.tolist() == [row == 3 or 70 <= row < 90 for row in range(95)]


@every_type
def test_buckets_beyond_the_tables_count_as_the_nearest_row(data: str) -> None:
    """The host does not see them: device memory is not waited for."""
    inputs = attention_inputs((70, 3), 2, 16, 8, rows=40)
    inputs["buckets"][::3] = -(2**62)
    inputs["buckets"][1::3] = 2**62
    near = inputs | {"buckets": np.clip(inputs["buckets"], 0, 39)}
    attributes: dict[str, AttributeValue] = {"num_heads": 2}
    assert same_bits(*(run_on_device("relative", each, attributes, data) for each in (inputs, near)))


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
@either_rows
def test_nothing_to_do(lengths: tuple[int, ...], queries: str) -> None:
    inputs = attention_inputs(lengths, 2, 8, 8, first=queries == "first")
    output, importance = run_on_device(
        "relative", inputs, {"num_heads": 2, "queries": queries, "importance": "maximum"}
    )
    assert output.shape == (len(lengths) if queries == "first" else 0, 16)
    assert not output.any()
    assert importance.shape == (0,)


def test_refusals_are_those_of_the_cpu() -> None:
    inputs = attention_inputs((5, 3), 2, 8, 8)

    def refused(attributes: dict[str, AttributeValue] | None = None, **changes: Array | None) -> str:
        changed = {name: value for name, value in (inputs | changes).items() if value is not None}
        with pytest.raises(EngineError) as caught:
            run_on_device("relative", changed, {"num_heads": 2} | (attributes or {}))
        return str(caught.value).split("RelativeAttention: ")[1]

    buckets = inputs["buckets"]
    assert refused(buckets=None).startswith("input buckets is missing, must be passed with pos_key, pos_query or bias")
    assert refused(buckets=buckets[1:]).startswith("buckets has size 100, must be odd")
    assert refused(bias=inputs["bias"][:, :1].copy()).startswith("bias has size 1 on axis 1, must be 2 (num_heads")
    assert refused(pos_query=inputs["pos_query"][1:]).startswith("pos_query has size 39 on axis 0, must be 40")
    assert refused(positions=np.arange(7)).startswith("positions has size 7 on axis 0, must be 8 (the number of rows")
    assert refused({"scale": float("nan")}) == "attribute scale is nan, must be finite"
