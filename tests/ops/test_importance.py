"""The output `importance` and the input `positions` of softmax attention, against the NumPy references."""

import numpy as np
import pytest
from cases import same_bits
from harness import AttributeValue, offsets, run
from importance_cases import BANDS, KINDS, attention_inputs, band_attributes, consecutive, expected, gaps
from mca_cases import ESTIMATORS, WEIGHTS, check, mca_inputs
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.softmax.reference import softmax_attention

LENGTHS = (1, 2, 7, 0, 17, 33, 64, 65, 100, 129, 257)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_band = pytest.mark.parametrize("band", BANDS.values(), ids=BANDS)


@every_kind
@every_band
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("spread", [False, True], ids=["rows", "positions"])
def test_softmax(kind: str, band: tuple[int, int], queries: str, spread: bool) -> None:
    lengths = (*LENGTHS, 500)
    inputs = attention_inputs(lengths, first=queries == "first")
    if spread:
        inputs["positions"] = gaps(lengths)
    attributes = band_attributes(band, queries=queries)
    output, importance = run("softmax", inputs, attributes | {"importance": kind}, threads=2)
    assert importance.shape == (sum(lengths),)
    np.testing.assert_allclose(importance, expected(inputs, attributes | {"importance": kind}), rtol=5e-6, atol=1e-7)
    assert same_bits([output], run("softmax", inputs, attributes))
    np.testing.assert_allclose(output, softmax_attention(**inputs, **attributes), atol=5e-6)  # type: ignore[arg-type]


@every_kind
@pytest.mark.parametrize("head_dim", [8, 9, 31, 64, 100, 256])
@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-3])
def test_head_dims_and_scales(kind: str, head_dim: int, scale: float) -> None:
    inputs = attention_inputs((70, 3, 33), 3, head_dim, head_dim)
    attributes: dict[str, AttributeValue] = {"num_heads": 3, "scale": scale, "importance": kind}
    output, importance = run("softmax", inputs, attributes)
    np.testing.assert_allclose(importance, expected(inputs, attributes), rtol=2e-5)
    assert same_bits([output], run("softmax", inputs, attributes | {"importance": "none"}))


@every_kind
@every_band
def test_softmax_alone_in_a_batch_and_with_any_threads(kind: str, band: tuple[int, int]) -> None:
    """Long sequences spread over several tasks; their bits are those of one thread and of a batch of one."""
    lengths = (40, 1300, 3, 0, 700)
    inputs = attention_inputs(lengths) | {"positions": gaps(lengths)}
    attributes = band_attributes(band, importance=kind)
    together = run("softmax", inputs, attributes)
    assert same_bits(together, run("softmax", inputs, attributes, threads=3))
    for b in (0, 1, 4):
        rows = slice(*inputs["cu_seqlens"][b : b + 2])
        alone = {name: value[rows] for name, value in inputs.items()} | {"cu_seqlens": offsets([lengths[b]])}
        assert same_bits([y[rows] for y in together], run("softmax", alone, attributes, threads=2))


@every_kind
def test_non_finite_rows_change_the_importance_of_their_sequence_alone(kind: str) -> None:
    lengths = (30, 90, 20)
    inputs = attention_inputs(lengths)
    clean = run("softmax", inputs, {"num_heads": 2, "importance": kind})[1]
    for row in (30, 60):
        hostile = inputs | {name: inputs[name].copy() for name in ("query", "key")}
        hostile["query"][row] = np.nan
        hostile["key"][70] = np.inf
        dirty = run("softmax", hostile, {"num_heads": 2, "importance": kind})[1]
        assert same_bits([dirty[:30], dirty[120:]], [clean[:30], clean[120:]])
        assert not same_bits([dirty[30:120]], [clean[30:120]])


def test_a_row_that_is_not_a_number_gives_no_maximum() -> None:
    inputs = attention_inputs((90,))
    inputs["query"][40] = np.nan
    importance = run("softmax", inputs, {"num_heads": 2, "importance": "maximum"})[1]
    others = np.arange(90) != 40
    key = inputs["key"]
    weights = np.exp(np.einsum("ihd,jhd->hij", *(rows.reshape(90, 2, 20) for rows in (inputs["query"], key))) / 20**0.5)
    weights /= weights.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(importance, weights[:, others].max(axis=1).sum(axis=0), rtol=2e-5)
    inputs["query"][0] = np.nan
    assert np.isnan(run("softmax", inputs, {"num_heads": 2, "importance": "first"})[1]).all()


@every_kind
@every_band
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mca(kind: str, band: tuple[int, int], estimator: str) -> None:
    """Heads that are exact, that are probed and stay exact, and that are approximated."""
    lengths = (90, 1, 17, 0, 150, 300)
    inputs = mca_inputs(lengths, 2, 24, 260)
    inputs["alpha"] = np.array([0.0, 1.0, 0.4, 1.0, 1.0, 0.05], np.float32)
    attributes = band_attributes(band, estimator=estimator)
    *outputs, importance = run("mca", inputs, attributes | {"importance": kind}, 2, WEIGHTS)
    np.testing.assert_allclose(importance, expected(inputs, attributes | {"importance": kind}), rtol=2e-5, atol=1e-7)
    assert same_bits(outputs, run("mca", inputs, attributes, 2, WEIGHTS))


@every_kind
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_mca_of_first_rows(kind: str, alpha: float, global_tokens: int) -> None:
    lengths = (90, 1, 0, 17)
    inputs = mca_inputs(lengths, 2, 24, 100, first=True)
    inputs["alpha"][:] = alpha
    attributes = band_attributes((9, global_tokens), queries="first")
    *outputs, importance = run("mca", inputs, attributes | {"importance": kind}, 1, WEIGHTS)
    np.testing.assert_allclose(importance, expected(inputs, attributes | {"importance": kind}), rtol=2e-5)
    assert same_bits(outputs, run("mca", inputs, attributes, 1, WEIGHTS))


@every_kind
@pytest.mark.parametrize(("alpha", "channels"), [(0.0, 64), (1.0, 1800)])
def test_mca_of_long_sequences(kind: str, alpha: float, channels: int) -> None:
    """More tokens than attention weights are kept for: spread over the threads, scores computed twice or not at all."""
    inputs = mca_inputs((800, 5), 2, 8, channels, sharpness=0.2)
    inputs["alpha"][:] = alpha
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "importance": kind}
    runs = [run("mca", inputs, attributes, threads, WEIGHTS) for threads in (1, 3)]
    assert same_bits(*runs)
    np.testing.assert_allclose(runs[0][2], expected(inputs, attributes), rtol=2e-5, atol=1e-7)
    assert same_bits(runs[0][:2], run("mca", inputs, {"num_heads": 2}, 1, WEIGHTS))


def test_mca_of_a_sequence_that_is_not_finite() -> None:
    inputs = mca_inputs((40, 30), 2, 24, 60)
    inputs["hidden"][5, 3] = np.nan
    importance = run("mca", inputs, {"num_heads": 2, "importance": "maximum"}, 1, WEIGHTS)[2]
    assert np.isnan(importance[:40]).all()
    assert np.isfinite(importance[40:]).all()


@every_band
@every_kind
def test_positions_without_gaps_change_no_bit(kind: str, band: tuple[int, int]) -> None:
    lengths = (*LENGTHS, 500)
    places = {"positions": consecutive(lengths)}
    attributes = band_attributes(band, importance=kind)
    inputs = attention_inputs(lengths)
    assert same_bits(run("softmax", inputs | places, attributes), run("softmax", inputs, attributes))
    for estimator in ESTIMATORS:
        inputs = mca_inputs(lengths, 2, 24, 260)
        chosen = attributes | {"estimator": estimator}
        without = run("mca", inputs, chosen, 1, WEIGHTS)
        assert same_bits(run("mca", inputs | places, chosen, 1, WEIGHTS), without)
        assert without[1].min() < 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("band", [(40, 0), (40, 1), (300, 0), (300, 1)], ids=str)
def test_mca_with_gaps(estimator: str, band: tuple[int, int]) -> None:
    """A window of 300 is wider than each sequence has rows, yet narrower than their positions."""
    lengths = (90, 17, 0, 1, 200)
    inputs = mca_inputs(lengths, 2, 24, 260) | {"positions": gaps(lengths) * 2}
    check(inputs, band_attributes(band, estimator=estimator))


@pytest.mark.parametrize("operator", ["softmax", "mca"])
def test_positions_that_do_not_ascend_are_refused(operator: str) -> None:
    lengths = (3, 0, 4)
    inputs = attention_inputs(lengths) if operator == "softmax" else mca_inputs(lengths, 2, 24, 60)
    good = np.array([0, 5, 9, 2, 3, 4, 2**62], np.int64)
    run(operator, inputs | {"positions": good}, {"num_heads": 2, "window": 2**30})
    for index, value in ((1, 0), (2, -1), (5, 3)):
        bad = good.copy()
        bad[index] = value
        sentence = (
            rf"positions\[{index}\] is {value}, must be above positions\[{index - 1}\] = {good[index - 1]} of the "
        )
        with pytest.raises(InvalidArgument, match=sentence):
            run(operator, inputs | {"positions": bad}, {"num_heads": 2, "window": 2})
    with pytest.raises(InvalidArgument, match="positions has size 6 on axis 0, must be 7"):
        run(operator, inputs | {"positions": good[:-1]}, {"num_heads": 2})


def test_positions_of_any_size() -> None:
    """Distances beyond 64 bits are far, not near."""
    inputs = attention_inputs((3,)) | {"positions": np.array([-(2**63), 0, 2**63 - 1], np.int64)}
    output = run("softmax", inputs, {"num_heads": 2, "window": 2**30})[0]
    np.testing.assert_array_equal(output, inputs["value"])
