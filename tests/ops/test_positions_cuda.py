"""The input `positions` of the CUDA kernels on the test device, against the CPU operators and the NumPy references."""

from collections.abc import Sequence

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, run
from harness_cuda import DATA_TYPES, run_on_device
from importance_cases import BANDS, KINDS, attention_inputs, band_attributes, consecutive, expected, gaps
from mca_cases import ESTIMATORS, mca_inputs
from mca_on_device import check as check_mca
from mca_on_device import rounded

from attenuator.ops.softmax.reference import softmax_attention

LENGTHS = (1, 17, 0, 64, 150)
# Rounding of the type: of the probabilities and of the output, for values of about 1.
TOLERANCE = {"float": 5e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
# A window of 300 is wider than each sequence has rows, yet narrower than their positions.
MCA_BANDS = [(40, 0), (40, 1), (300, 0), (300, 1)]
every_data = pytest.mark.parametrize("data", DATA_TYPES)


def spread(lengths: Sequence[int], seed: int = 0, **shape: int) -> dict[str, Array]:
    """Inputs of softmax attention whose rows stand apart."""
    first = bool(shape.pop("first", 0))
    return attention_inputs(lengths, first=first, **shape) | {"positions": gaps(lengths, seed)}


def check(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str = "float") -> None:
    """Compares output and, where there is one, importance with the reference, in float with the CPU operator too."""
    inputs = rounded(inputs, data)
    outputs = run_on_device("softmax", inputs, attributes, data)
    chosen = {name: value for name, value in attributes.items() if name != "importance"}
    references = [softmax_attention(**inputs, **chosen)]  # type: ignore[arg-type]
    if "importance" in attributes:
        references.append(expected(inputs, attributes))
        np.testing.assert_allclose(outputs[1], references[1], rtol=1e-5, atol=1e-7)
    size = max(1.0, np.abs(references[0]).max(initial=0))
    np.testing.assert_allclose(outputs[0], references[0], rtol=0, atol=TOLERANCE[data] * size)
    if data == "float":
        for ours, theirs in zip(outputs, run("softmax", inputs, attributes), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=5e-6 * size)


@every_data
@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
@pytest.mark.parametrize("queries", ["all", "first"])
def test_windows_measure_positions(band: tuple[int, int], queries: str, data: str) -> None:
    inputs = spread(LENGTHS, seed=sum(band), first=queries == "first")
    kind = KINDS[band[0] % 2]
    check(inputs, band_attributes(band, queries=queries, importance=kind), data)


@every_data
@pytest.mark.parametrize("head_dim", [20, 32, 64, 136])
@pytest.mark.parametrize("band", [(1, 1), (64, 0), (2**30, 1)], ids=str)
def test_tiles_and_blocks_of_keys(band: tuple[int, int], head_dim: int, data: str) -> None:
    """Lengths on both sides of the borders of every kernel's tiles."""
    lengths = (129, 2, 193) if data == "float" and head_dim == 20 else (131,)
    check(
        spread(lengths, head_dim, heads=1, head_dim=head_dim, value_dim=head_dim),
        band_attributes(band, num_heads=1),
        data,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", [(6, 0), (6, 1), (150, 1)], ids=str)
def test_importance(kind: str, band: tuple[int, int]) -> None:
    """A window of 150 holds every sequence's rows, but not their positions."""
    check(spread((1, 70, 0, 130), seed=3), band_attributes(band, importance=kind))
    inputs = mca_inputs((70, 1), 2, 24, 160) | {"positions": gaps((70, 1), 4)}
    attributes = band_attributes(band, importance=kind)
    importance = run_on_device("mca", inputs, attributes)[2]
    np.testing.assert_allclose(importance, expected(inputs, attributes), rtol=1e-4, atol=1e-6)


@every_data
def test_a_window_may_hold_the_row_alone(data: str) -> None:
    inputs = attention_inputs(LENGTHS) | {"positions": consecutive(LENGTHS) * 10}
    output, importance = run_on_device("softmax", inputs, band_attributes((9, 0), importance="maximum"), data)
    np.testing.assert_array_equal(output, rounded(inputs, data)["value"])
    np.testing.assert_array_equal(importance, np.full(len(output), 2, np.float32))


@pytest.mark.parametrize("data", ["float", "bfloat16"])
@pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)
def test_positions_without_gaps_change_no_bit(band: tuple[int, int], data: str) -> None:
    lengths = (1, 17, 0, 90)
    places = {"positions": consecutive(lengths)}
    attributes = band_attributes(band, importance=KINDS[band[1]])
    for operator, inputs in (("softmax", attention_inputs(lengths)), ("mca", mca_inputs(lengths, 2, 24, 160))):
        without = run_on_device(operator, inputs, attributes, data)
        assert same_bits(run_on_device(operator, inputs | places, attributes, data), without)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("band", MCA_BANDS, ids=str)
def test_mca(estimator: str, band: tuple[int, int]) -> None:
    lengths = (90, 17, 0, 1, 200)
    inputs = mca_inputs(lengths, 1, 24, 260) | {"positions": gaps(lengths, 1) * 2}
    check_mca(inputs, band_attributes(band, num_heads=1, estimator=estimator))


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize("band", [(12, 1), (70, 0)], ids=str)
def test_mca_in_half_types(band: tuple[int, int], data: str) -> None:
    inputs = mca_inputs((70, 1, 40), 2, 32, 200) | {"positions": gaps((70, 1, 40), 2) * 2}
    inputs["alpha"][0] = 1.0
    assert check_mca(inputs, band_attributes(band, estimator="paper"), data).min() < 1.0, "nothing was approximated"
    assert check_mca(inputs, band_attributes(band), data).min() == 1.0


@pytest.mark.parametrize("band", [(5, 0), (5, 1), (90, 0), (90, 1)], ids=str)
def test_mca_of_the_first_row(band: tuple[int, int]) -> None:
    lengths = (40, 1, 0, 90, 5)
    inputs = mca_inputs(lengths, 2, 24, 50, first=True) | {"positions": gaps(lengths, 5)}
    inputs["alpha"][4] = 0
    check_mca(inputs, band_attributes(band, queries="first"))


def test_positions_may_take_a_row_beyond_the_keys_that_mca_looks_at() -> None:
    """Rows that see more than 768 keys are exact under a window; without one, so many channels make it worthwhile."""
    inputs = mca_inputs((769,), 1, 8, 1600) | {"alpha": np.ones(1, np.float32)}
    inputs["hidden"] += 2 * np.random.default_rng(1).standard_normal(1600).astype(np.float32)
    attributes = band_attributes((800, 0), num_heads=1)
    near, far = (inputs | {"positions": consecutive((769,)) * step} for step in (1, 2))
    assert check_mca(near, attributes) < 1.0
    assert check_mca(far, attributes) == 1.0


@every_data
def test_positions_of_any_size(data: str) -> None:
    """Distances beyond 64 bits are far, not near."""
    inputs = attention_inputs((3,)) | {"positions": np.array([-(2**63), 0, 2**63 - 1], np.int64)}
    output = run_on_device("softmax", inputs, {"num_heads": 2, "window": 2**30}, data)[0]
    np.testing.assert_array_equal(output, rounded(inputs, data)["value"])


@pytest.mark.parametrize("global_tokens", [0, 1])
def test_positions_in_disorder_give_numbers_and_disturb_no_other_sequence(global_tokens: int) -> None:
    """They lie on the device, where nothing waits to look whether they ascend."""
    lengths = (90, 40)
    rng = np.random.default_rng(8)
    for operator, inputs in (("softmax", spread(lengths)), ("mca", mca_inputs(lengths, 2, 24, 160))):
        places = inputs | {"positions": gaps(lengths)}
        shuffled = places | {"positions": np.append(rng.integers(-100, 100, 90), places["positions"][90:])}
        attributes = band_attributes((6, global_tokens), importance="maximum")
        outputs = run_on_device(operator, shuffled, attributes)
        assert all(np.isfinite(output).all() for output in outputs)
        ordered = run_on_device(operator, places, attributes)
        assert same_bits([outputs[0][90:]], [ordered[0][90:]])
        assert same_bits([outputs[-1][90:]], [ordered[-1][90:]])


@every_data
@pytest.mark.parametrize("operator", ["softmax", "mca"])
def test_any_order_of_threads(operator: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (70, 9)
    inputs = attention_inputs(lengths) if operator == "softmax" else mca_inputs(lengths, 2, 24, 160)
    runs = []
    for order in ("forward", "backward", "1"):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        places = inputs | {"positions": gaps(lengths)}
        runs.append(run_on_device(operator, places, band_attributes((9, 1), importance="maximum"), data))
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


@pytest.mark.parametrize("operator", ["softmax", "mca"])
def test_a_sequence_does_not_depend_on_its_batch(operator: str) -> None:
    inputs = attention_inputs(LENGTHS) if operator == "softmax" else mca_inputs(LENGTHS, 2, 24, 160)
    inputs["positions"] = gaps(LENGTHS)
    attributes = band_attributes((6, 1), importance="maximum")
    together = run_on_device(operator, inputs, attributes)
    rows = slice(*inputs["cu_seqlens"][3:5])
    alone = {name: value[rows] if len(value) == sum(LENGTHS) else value for name, value in inputs.items()}
    if operator == "mca":
        alone |= {name: inputs[name][3:4] for name in ("alpha", "seed")}
    parts = run_on_device(operator, alone | {"cu_seqlens": np.array([0, 64], np.int32)}, attributes)
    assert same_bits([together[0][rows], together[-1][rows]], [parts[0], parts[-1]])
