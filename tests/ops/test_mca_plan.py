"""Which heads and tokens McaAttention approximates: as the reference decides, whatever the window, batch and threads.

Beside it what these decisions must not touch: exact heads are exact, and a NaN stays in its sequence.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, offsets, run
from mca_cases import ESTIMATORS, WEIGHTS, check, mca_inputs, plans

from attenuator.ops.mca import reference, reference_plan, rule
from attenuator.ops.softmax.reference import probabilities

PROBED = ("sampled", "deterministic")  # `paper` never asks
# Around the sizes of blocks and probes, and on both sides of what one task takes.
EDGES = (63, 64, 65, 127, 128, 129)
README = Path(reference_plan.__file__).with_name("README.md")
# window, global_tokens
WINDOWS = ((0, 0), (20, 0), (20, 1))


def attributes_of(estimator: str, window: int = 0, global_tokens: int = 0, heads: int = 2) -> dict[str, AttributeValue]:
    return {"num_heads": heads, "estimator": estimator, "window": window, "global_tokens": global_tokens}


def exact_rows(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> Array:
    """What alpha = 0 gives."""
    zero = np.zeros_like(inputs["alpha"])
    return np.asarray(run("mca", inputs | {"alpha": zero}, attributes, 1, WEIGHTS)[0])


def assert_close(output: Array, expected: Array) -> None:
    assert np.abs(output - expected).max() < 1e-5 * np.abs(expected).max()


def sharpen(inputs: dict[str, Array], head: int, head_dim: int, rows: slice = slice(None)) -> None:
    """So that each of these rows of a head sees next to nothing but its own key: their tokens cannot be sampled."""
    block = slice(head * head_dim, (head + 1) * head_dim)
    key = inputs["key"][:, block]
    key *= 8 / np.linalg.norm(key, axis=1, keepdims=True)
    inputs["query"][rows, block] = key[rows]


@pytest.mark.parametrize(("window", "global_tokens"), WINDOWS)
@pytest.mark.parametrize("estimator", PROBED)
def test_decisions_are_those_of_the_reference_whatever_alpha(estimator: str, window: int, global_tokens: int) -> None:
    alphas = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0], np.float32)
    lengths = (*EDGES, 300, 700)
    decided = []
    for turn in range(3):
        inputs = mca_inputs(lengths, 2, 20, 220, seed=turn, sharpness=(0.1, 0.3, 0.6)[turn])
        inputs["alpha"] = np.roll(alphas, 3 * turn)
        decided.append(check(inputs, attributes_of(estimator, window, global_tokens)))
    shares = np.array(decided)[:, 2:]
    assert (shares == 1).any()
    assert (shares < 1).any()


@pytest.mark.parametrize("estimator", PROBED)
@pytest.mark.parametrize(
    ("lengths", "window", "global_tokens"),
    [((769, 1500), 33, 0), ((769, 1500), 33, 1), ((700, 500), 400, 0), ((700, 500), 300, 1), ((769, 1500), 0, 0)],
)
def test_decisions_of_long_sequences_and_of_windows_beyond_half(
    estimator: str, lengths: tuple[int, int], window: int, global_tokens: int
) -> None:
    for alpha in (0.3, 1.0) if max(lengths) < 1500 else (1.0,):
        inputs = mca_inputs(lengths, 2, 48, 500 if window else 2000, sharpness=0.05)
        inputs["alpha"][:] = alpha
        flops = check(inputs, attributes_of(estimator, window, global_tokens), 2)
    assert flops[0] < 1.0, "nothing was approximated at alpha = 1"
    assert flops[1] < 1.0 or not window, "nothing was approximated at alpha = 1"


@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("window", [50, 383])
def test_the_paper_estimator_with_windows_of_long_sequences(window: int, global_tokens: int) -> None:
    inputs = mca_inputs((900, 70, 770), 1, 16, 100, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    assert check(inputs, attributes_of("paper", window, global_tokens, heads=1), 2).max() < 1.0


@pytest.mark.parametrize(("estimator", "channels"), [("paper", 100), ("sampled", 2100), ("deterministic", 2100)])
@pytest.mark.parametrize(("window", "global_tokens"), [(400, 0), (400, 1), (900, 1)])
def test_windows_of_more_than_768_keys_are_exact(
    estimator: str, channels: int, window: int, global_tokens: int
) -> None:
    inputs = mca_inputs((1000,), 1, 16, channels, sharpness=0.1)
    inputs["alpha"][:] = 1.0
    flops = check(inputs, attributes_of(estimator, window, global_tokens, heads=1), 2)
    assert flops[0] == 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scores_computed_twice(estimator: str) -> None:
    """Above 768 tokens without a window, 2 n <= C: a flat head promises to pay, a sharp one does not."""
    inputs = mca_inputs((800,), 2, 16, 2000, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    sharpen(inputs, 1, 16)
    attributes = attributes_of(estimator)
    flops = check(inputs, attributes)
    assert 0.5 < flops[0] < (0.9 if estimator == "paper" else 0.6)
    outputs = [run("mca", inputs, attributes, threads, WEIGHTS) for threads in (1, 2, 3)]
    assert same_bits(outputs[0], outputs[1])
    assert same_bits(outputs[0], outputs[2])
    if estimator != "paper":
        assert_close(outputs[0][0][:, 16:], exact_rows(inputs, attributes)[:, 16:])


@pytest.mark.parametrize("estimator", PROBED)
@pytest.mark.parametrize(
    ("length", "window", "global_tokens"),
    [(65, 0, 0), (200, 0, 0), (300, 20, 0), (300, 20, 1), (900, 40, 0), (900, 40, 1)],
)
def test_a_head_that_does_not_promise_to_pay_is_exact(
    estimator: str, length: int, window: int, global_tokens: int
) -> None:
    inputs = mca_inputs((length,), 2, 16, 400, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    attributes = attributes_of(estimator, window, global_tokens)
    assert rule.probe_of(length, window).rows
    assert check(inputs, attributes)[0] < 0.5, "both heads promise to pay"
    sharpen(inputs, 1, 16)
    output, flops = run("mca", inputs, attributes, 1, WEIGHTS)
    assert 0.5 < flops[0] < 0.7, "one does still"
    exact = exact_rows(inputs, attributes)
    assert_close(output[:, 16:], exact[:, 16:])
    assert np.abs(output - exact)[1:, :16].max() > 1e-3
    sharpen(inputs, 0, 16)
    output, flops = run("mca", inputs, attributes, 1, WEIGHTS)
    assert flops[0] == 1.0
    assert_close(output, exact_rows(inputs, attributes))


def test_the_lengths_that_can_save_anything_are_the_readme_s() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("| C | no window | window 64 |"))
    windows = (0, 64, 128, 192, 256, 383)

    def saves(channels: int, window: int, tokens: int) -> bool:
        cost = rule.maxima_cost(tokens, window, 64)
        possible = rule.worth_approximating(tokens, channels, 1.0, "sampled", window)
        return possible and reference_plan.worth_sampling(tokens, tokens, channels, 64, cost)

    for line in lines[head + 2 : head + 7]:
        channels, *longest = (cell.strip().replace(",", "") for cell in line.strip("|").split("|"))
        for window, tokens in zip(windows, longest, strict=True):
            last = 10**6 if tokens == "any" else int(tokens)
            assert saves(int(channels), window, last)
            assert tokens == "any" or not saves(int(channels), window, last + 1)


@pytest.mark.parametrize("estimator", PROBED)
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_the_rows_of_the_probe_decide(estimator: str, global_tokens: int) -> None:
    """Without a promise no token is approximated, though those beyond the probe would be, and the other way round."""
    window, length, head_dim = 20, 1000, 16
    attributes = attributes_of(estimator, window, global_tokens)
    inputs = mca_inputs((length,), 2, head_dim, 300, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    probe = rule.probe_of(length, window)
    first, last = probe.first_row, probe.first_row + probe.rows
    sharpen(inputs, 0, head_dim, slice(first, last))
    sharpen(inputs, 1, head_dim, slice(0, first - window))
    sharpen(inputs, 1, head_dim, slice(last + window + 160, length))
    check(inputs, attributes)
    none, some = (plans(inputs, attributes, 0, head, (1.0,))[0] for head in (0, 1))
    assert not none.any()
    assert 0 < some.astype(bool).mean() < 0.45, "the tokens that the probe has looked at, and few others"
    maxima = probabilities(inputs["query"][:, :head_dim], inputs["key"][:, :head_dim], 0.0, window, global_tokens).max(
        0
    )
    if estimator == "sampled":
        _, sampled = reference_plan.samples_of(
            reference_plan.required_samples(maxima, 2 * window + 1 + global_tokens, 1.0), 300
        )
        assert sampled.mean() > 0.8, "most tokens could be sampled"
    output, flops = run("mca", inputs, attributes, 1, WEIGHTS)
    exact = exact_rows(inputs, attributes)
    assert_close(output[:, :head_dim], exact[:, :head_dim])
    assert 0.8 < flops[0] < 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_neither_batch_nor_threads_change_a_bit_of_windows(estimator: str, global_tokens: int) -> None:
    lengths = (800, 0, 129, 1500, 3, 769, 300)
    widest = {"sampled": 100, "deterministic": 31, "paper": 383}[estimator]  # that is approximated here
    for window in (1, 31, 64, 100, 383):
        inputs = mca_inputs(lengths, 2, 16, 300, sharpness=0.05)
        inputs["alpha"][[0, 2, 3, 6]] = 1.0
        sharpen(inputs, 1, 16)
        attributes = attributes_of(estimator, window, global_tokens)
        one, two, three = (run("mca", inputs, attributes, threads, WEIGHTS) for threads in (1, 2, 3))
        assert same_bits(one, two)
        assert same_bits(one, three)
        assert window > widest or one[1][[0, 3]].max() < 1.0, "nothing was approximated"
        for b, (begin, end) in enumerate(itertools.pairwise(inputs["cu_seqlens"])):
            rows = slice(begin, end)
            alone = inputs | {name: inputs[name][rows] for name in ("query", "key", "hidden")}
            alone |= {name: inputs[name][b : b + 1] for name in ("alpha", "seed")}
            alone["cu_seqlens"] = offsets(lengths[b : b + 1])
            assert same_bits(run("mca", alone, attributes, 1 + b % 3, WEIGHTS), [one[0][rows], one[1][b : b + 1]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ragged_batches_with_windows(estimator: str) -> None:
    for window, global_tokens in ((1, 0), (31, 1), (20, 0)):
        inputs = mca_inputs((200, 0, 1, 780, 2, 65, 3, 129, 33), 2, 48, 150, sharpness=0.05)
        inputs["alpha"][[0, 3, 5]] = 1.0
        assert check(inputs, attributes_of(estimator, window, global_tokens), 2)[[0, 3]].max() < 1.0


@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("window", [0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 383])
def test_stored_attention_weights_give_the_rows_of_softmax_attention(window: int, global_tokens: int) -> None:
    """`paper` keeps all weights whatever they promise; at so small an alpha no token takes less than all columns.

    Keeping them changes no bit: the two halves of exact attention take its own steps.
    """
    inputs = mca_inputs((3, *EDGES, 300, 769), 2, 24, 60)
    inputs["alpha"][:] = 1e-3
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "window": window, "global_tokens": global_tokens}
    output, flops = run("mca", inputs, attributes | {"estimator": "paper"}, 2, WEIGHTS)
    assert (flops == 1.0).all()
    value = (inputs["hidden"] @ inputs["value_weight"] + inputs["value_bias"]).astype(np.float32)
    plain = {name: inputs[name] for name in ("query", "key", "cu_seqlens")} | {"value": value}
    assert_close(output, run("softmax", plain, attributes)[0])
    assert same_bits([output], [exact_rows(inputs, attributes)])


@pytest.mark.parametrize("magnitude", [1e-25, 1e20, 1e30])
@pytest.mark.parametrize(("window", "global_tokens"), WINDOWS)
def test_the_mean_row_is_chosen_though_squares_leave_float32(magnitude: float, window: int, global_tokens: int) -> None:
    """One row far from all others: they lie further from the mean row than from 0, which therefore is not taken off."""
    inputs = mca_inputs((130,), 1, 16, 1700, sharpness=0.05)
    inputs["alpha"][:] = 1.0
    inputs["hidden"][:] = 0
    inputs["hidden"][70] = magnitude
    inputs["value_weight"] /= np.float32(1000)
    attributes = attributes_of("sampled", window, global_tokens, heads=1)
    inputs["value_bias"][:] = 0
    output, flops = run("mca", inputs, attributes, 1, WEIGHTS)
    expected, expected_flops = reference.mca_attention(**inputs, **attributes)  # type: ignore[arg-type]
    assert flops[0] < 1.0, "nothing was approximated"
    np.testing.assert_allclose(flops, expected_flops, rtol=1e-6)
    assert np.abs(output - expected).max() < 2e-5 * np.abs(expected).max()


def poisoned(inputs: dict[str, Array], name: str, row: int, column: int, value: float) -> dict[str, Array]:
    array = inputs[name].copy()
    array[row, column] = value
    return inputs | {name: array}


# Of three heads: a column of the last and of the one between, at the borders of the thirds of 200 channels too.
COLUMNS = {"query": (12, 35), "key": (23, 35), "hidden": (0, 66, 67, 132, 133, 199)}
VALUES = (np.nan, np.inf, -np.inf)
LENGTHS = (130, 90, 1000, 900, 40)  # approximated, exact, approximated, exact, too short to be


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (20, 1)])
def test_a_number_that_is_not_finite_stays_in_its_sequence(
    name: str, estimator: str, window: int, global_tokens: int
) -> None:
    inputs = mca_inputs(LENGTHS, 3, 12, 200, sharpness=0.05)
    inputs["alpha"][:] = (1.0, 0.0, 1.0, 0.0, 1.0)
    attributes = attributes_of(estimator, window, global_tokens, heads=3)
    clean = run("mca", inputs, attributes, 2, WEIGHTS)
    assert clean[1][0] < 1.0, "nothing was approximated"
    if window or estimator == "paper":
        assert clean[1][2] < 1.0, "nothing was approximated"
    kinds = itertools.cycle(VALUES)
    for b, column in itertools.product(range(len(LENGTHS)), COLUMNS[name]):
        begin, end = inputs["cu_seqlens"][b : b + 2]
        row = (begin, (begin + end) // 2, end - 1)[(b + column) % 3]
        output, flops = run("mca", poisoned(inputs, name, row, column, next(kinds)), attributes, 2, WEIGHTS)
        assert np.isnan(output[begin:end]).all()
        assert flops[b] == 1.0
        others = np.arange(len(LENGTHS)) != b
        rows = np.repeat(others, LENGTHS)
        assert same_bits([output[rows], flops[others]], [clean[0][rows], clean[1][others]])


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("window", [0, 20])
def test_a_number_that_is_not_finite_stays_in_its_first_row(name: str, window: int) -> None:
    inputs = mca_inputs(LENGTHS, 3, 12, 200, first=True)
    inputs["alpha"][:] = (1.0, 0.0, 1.0, 0.0, 1.0)
    attributes = attributes_of("sampled", window, heads=3) | {"queries": "first"}
    clean = run("mca", inputs, attributes, 2, WEIGHTS)
    assert np.isfinite(clean[0]).all()
    for b, column in itertools.product(range(len(LENGTHS)), COLUMNS[name]):
        begin, end = inputs["cu_seqlens"][b : b + 2]
        row = b if name == "query" else (begin, end - 1)[column % 2]
        output, flops = run("mca", poisoned(inputs, name, row, column, np.nan), attributes, 2, WEIGHTS)
        assert np.isnan(output[b]).all()
        assert flops[b] == 1.0
        others = np.arange(len(LENGTHS)) != b
        assert same_bits([output[others], flops[others]], [clean[0][others], clean[1][others]])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_more_heads_than_channels_still_look_at_every_channel(alpha: float) -> None:
    inputs = mca_inputs((20, 30), 5, 8, 3)
    inputs["alpha"][:] = alpha
    for column in range(3):
        output, flops = run(
            "mca", poisoned(inputs, "hidden", 25, column, np.nan), {"num_heads": 5, "estimator": "sampled"}, 1, WEIGHTS
        )
        assert np.isfinite(output[:20]).all()
        assert np.isnan(output[20:]).all()
        assert flops[1] == 1.0
