"""Knob checks from the manifest's rows, and scores that never overflow."""

import numpy as np
import pytest

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest, KnobOutOfRange, UnknownField
from attenuator.ops.knobs import check_seed, shown
from attenuator.runtime import KnobTable
from attenuator.runtime.scores import agrees, predict, sigmoid, softmax, unchanged

TEXTS = {"unit": "", "doc": ""}
HASHES = BundleKnob(name="num_hashes", dtype="int32", default=32, low=0, high=64, exact=0, accuracy="rises", **TEXTS)
ALPHA = BundleKnob(name="alpha", dtype="float", default=0.2, low=0, high=0.5, exact=0, accuracy="falls", **TEXTS)


def test_values_are_filled_in_and_typed() -> None:
    table = KnobTable("m", [HASHES, ALPHA])
    assert table.check({}) == {"num_hashes": 32, "alpha": 0.2}
    checked = table.check({"alpha": 0, "num_hashes": 64})
    assert checked == {"num_hashes": 64, "alpha": 0.0}
    assert [type(value) for value in checked.values()] == [int, float]
    assert table.exact() == {"num_hashes": 0, "alpha": 0.0}


def test_exact_values_may_be_the_defaults() -> None:
    table = KnobTable("m", [HASHES, ALPHA]).exact_by_default()
    assert table.defaults() == table.check({}) == {"num_hashes": 0, "alpha": 0.0}
    assert table.check({"num_hashes": 8}) == {"num_hashes": 8, "alpha": 0.0}, "also those that a request leaves out"
    assert [type(value) for value in table.defaults().values()] == [int, float]


@pytest.mark.parametrize("value", [True, False, None, "8", 8.5, 65.0, -1, 65, [8], {"a": 1}, float("nan"), 10**40])
def test_whole_number_knob_refuses(value: object) -> None:
    with pytest.raises(KnobOutOfRange, match=r"must be a whole number from 0 to 64$") as caught:
        KnobTable("m", [HASHES]).check({"num_hashes": value})
    assert (caught.value.param, caught.value.allowed) == ("num_hashes", "a whole number from 0 to 64")


@pytest.mark.parametrize("value", [True, None, "0.1", 0.51, -0.001, [0.1], float("nan"), float("inf"), 1])
def test_float_knob_refuses(value: object) -> None:
    with pytest.raises(KnobOutOfRange, match=r"^alpha is .*, must be a number from 0 to 0.5$"):
        KnobTable("m", [ALPHA]).check({"alpha": value})


def test_knob_that_the_model_does_not_have() -> None:
    with pytest.raises(UnknownField, match=r"^model 'm' has no knob alpha: it has num_hashes$") as caught:
        KnobTable("m", [HASHES]).check({"alpha": 0.1})
    assert caught.value.allowed == "num_hashes: a whole number from 0 to 64"
    with pytest.raises(UnknownField, match=r"it has no knobs$"):
        KnobTable("m", []).check({"alpha": 0.1})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ("8", "a text"),
        ([8], "a list"),
        ({"a": 8}, "an object"),
        (2.5, "2.5"),
        (1 - 10**18, "-999999999999999999"),
        (10**18, "a number with more than 18 digits"),
        (-(10**18), "a number with more than 18 digits"),
    ],
)
def test_a_value_is_named_in_few_characters(value: object, text: str) -> None:
    assert shown(value) == text


def test_seed_bounds() -> None:
    assert check_seed(0) == 0
    assert check_seed(2**53 - 1) == 2**53 - 1
    assert isinstance(check_seed(7.0), int)
    for bad in (-1, 2**53, float(2**53), 1.5, True, "1", None):
        with pytest.raises(InvalidRequest, match=r"seed is .*, or null to have one drawn$"):
            check_seed(bad)


def test_softmax_and_sigmoid_survive_any_logit() -> None:
    hostile = np.array([-1e30, 3e38, 0.0, -3e38], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert softmax(hostile).tolist() == [0, 1, 0, 0]
        assert sigmoid(hostile).tolist() == [0, 1, 0.5, 0]
        # A logit large in absolute value and negative is what overflows where the wrong one is subtracted.
        assert softmax(np.array([-1000.0, 1.0])).tolist() == [0, 1]
    draw = np.random.default_rng(0).standard_normal((50, 7)) * 20
    assert np.allclose(softmax(draw).sum(axis=1), 1, rtol=1e-14)
    assert np.allclose(sigmoid(draw) + sigmoid(-draw), 1, rtol=1e-14)


def test_labels_at_their_threshold_count_and_ties_go_to_the_first() -> None:
    logits = np.array([0.0, -1.0, 0.0], dtype=np.float32)
    prediction = predict(sigmoid(logits), logits, labels=["a", "b", "c"], thresholds=[0.5, 0.1, 0.6])
    assert prediction.labels == ["a", "b"]
    assert (prediction.label, prediction.score) == ("a", 0.5)
    assert [name for name, _ in prediction.ranking] == ["a", "c", "b"]
    single = predict(softmax(logits), logits, labels=["a", "b", "c"])
    assert single.labels is None
    assert single.logits == [0.0, -1.0, 0.0]
    logits = np.array([0.0, 2.0, 1.0], dtype=np.float32)
    best = predict(softmax(logits), logits, labels=["a", "b", "c"])
    assert (best.label, best.score) == ("b", softmax(logits)[1])


@pytest.mark.parametrize("logit", [-3.5, 0.0, 17.25, 3e38])
def test_a_regression_answers_the_logit_itself(logit: float) -> None:
    row = np.array([logit], dtype=np.float32)
    prediction = predict(unchanged(row), row, labels=["similarity"])
    assert (prediction.label, prediction.score, prediction.labels) == ("similarity", float(row[0]), None)
    assert (prediction.ranking, prediction.logits) == ([("similarity", float(row[0]))], [float(row[0])])


def test_agreement_compares_labels_sets_and_scores() -> None:
    exact = np.array([[0.0, 2.0], [1.0, 0.0]], dtype=np.float32)
    other = np.array([[1.5, 2.0], [1.0, 1.5]], dtype=np.float32)
    assert agrees(other, exact, task="single_label", thresholds=[]).tolist() == [True, False]
    # sigmoid(1.5) is 0.82: above the threshold of the second label in both rows, below that of the first in all.
    assert agrees(other, exact, task="multi_label", thresholds=[0.9, 0.1]).tolist() == [True, True]
    assert agrees(other, exact, task="multi_label", thresholds=[0.7, 0.1]).tolist() == [False, True]
    assert agrees(other, exact, task="multi_label", thresholds=[0.9, 0.6]).tolist() == [True, False]


def test_scores_agree_within_a_tenth_of_their_standard_deviation() -> None:
    exact = np.array([[-2.0], [2.0], [-2.0], [2.0]], dtype=np.float32)  # standard deviation 2
    moved = exact + np.array([[0.19], [-0.19], [0.21], [np.nan]], dtype=np.float32)
    assert agrees(moved, exact, task="regression", thresholds=[]).tolist() == [True, True, False, False]
    alone = np.array([[0.3]], dtype=np.float32)
    assert agrees(alone, alone, task="regression", thresholds=[]).tolist() == [True]
    assert agrees(alone + 1e-3, alone, task="regression", thresholds=[]).tolist() == [False]
    assert agrees(alone + 1e-3, alone, task="regression", thresholds=[], deviation=0.02).tolist() == [True]


def test_an_answer_that_is_not_a_number_agrees_with_nothing() -> None:
    exact, broken = np.zeros((1, 2), dtype=np.float32), np.array([[0.0, np.nan]], dtype=np.float32)
    for task, thresholds in (("single_label", []), ("multi_label", [0.9, 0.9])):
        assert agrees(exact, exact, task=task, thresholds=thresholds).all()
        assert not agrees(broken, exact, task=task, thresholds=thresholds).any()
