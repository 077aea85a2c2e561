"""The output `importance` of the CUDA kernels on the test device, against the CPU operators and the NumPy reference."""

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, run
from harness_cuda import DATA_TYPES, run_on_device
from importance_cases import BANDS, KINDS, attention_inputs, band_attributes, expected
from mca_cases import ESTIMATORS, mca_inputs

LENGTHS = (1, 17, 0, 64, 150)
# Scores are float32 sums in another order; MCA's inputs have larger ones.
TOLERANCE = {"softmax": 1e-5, "mca": 1e-4}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_band = pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """Queries and keys as the device sees them, in float32."""
    seen = {name: inputs[name].astype(DATA_TYPES[data]).astype(np.float32) for name in ("query", "key")}
    return inputs | seen


@every_kind
@every_band
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("data", DATA_TYPES)
def test_softmax(kind: str, band: tuple[int, int], queries: str, data: str) -> None:
    inputs = attention_inputs(LENGTHS, first=queries == "first")
    attributes = band_attributes(band, queries=queries)
    output, importance = run_on_device("softmax", inputs, attributes | {"importance": kind}, data)
    reference = expected(rounded(inputs, data), attributes | {"importance": kind})
    np.testing.assert_allclose(importance, reference, rtol=TOLERANCE["softmax"], atol=1e-7)
    assert same_bits([output], run_on_device("softmax", inputs, attributes, data))


@every_kind
@pytest.mark.parametrize("head_dim", [8, 33, 128, 200])
def test_head_dims(kind: str, head_dim: int) -> None:
    inputs = attention_inputs((70, 3), 1, head_dim, 8)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "scale": -0.1, "importance": kind}
    importance = run_on_device("softmax", inputs, attributes)[1]
    np.testing.assert_allclose(importance, run("softmax", inputs, attributes)[1], rtol=5e-5)


@every_kind
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("band", [(0, 0), (9, 1)], ids=str)
def test_mca(kind: str, estimator: str, band: tuple[int, int]) -> None:
    inputs = mca_inputs((90, 1, 0, 40), 2, 24, 260)
    attributes = band_attributes(band, estimator=estimator)
    *outputs, importance = run_on_device("mca", inputs, attributes | {"importance": kind})
    reference = expected(inputs, attributes | {"importance": kind})
    np.testing.assert_allclose(importance, reference, rtol=TOLERANCE["mca"], atol=1e-6)
    assert same_bits(outputs, run_on_device("mca", inputs, attributes))


@every_kind
def test_a_sequence_alone_gives_its_bits(kind: str) -> None:
    inputs = attention_inputs(LENGTHS)
    attributes = band_attributes((6, 1), importance=kind)
    together = run_on_device("softmax", inputs, attributes)[1]
    rows = slice(*inputs["cu_seqlens"][4:6])
    alone = {name: value[rows] for name, value in inputs.items()} | {"cu_seqlens": np.array([0, 150], np.int32)}
    assert same_bits([together[rows]], [run_on_device("softmax", alone, attributes)[1]])


def test_non_finite_rows_are_the_cpus() -> None:
    inputs = attention_inputs((40, 20))
    inputs["query"][7] = np.nan
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "importance": "maximum"}
    on_cpu = run("softmax", inputs, attributes)[1]
    np.testing.assert_allclose(run_on_device("softmax", inputs, attributes)[1], on_cpu, rtol=1e-5)
    inputs["query"][0] = np.nan
    importance = run_on_device("softmax", inputs, attributes | {"importance": "first"})[1]
    assert np.isnan(importance[:40]).all()
    assert np.isfinite(importance[40:]).all()
    broken = mca_inputs((40, 20), 2, 24, 60)
    broken["hidden"][3, 5] = np.inf
    importance = run_on_device("mca", broken, attributes)[2]
    assert np.isnan(importance[:40]).all()
    assert np.isfinite(importance[40:]).all()
