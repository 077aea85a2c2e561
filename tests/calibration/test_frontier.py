"""Buckets, frontiers, and the promise: what a goal chooses keeps it in at least 95 % of calibrations."""

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import binom

from attenuator.calibration import Calibration, cheapest
from attenuator.calibration.frontier import Answers, bucket_ends, summarise, texts_needed, undominated

CALIBRATIONS = 500
# So many errors or fewer are seen with probability 0.999 where each calibration errs with probability 0.05.
MOST_ERRORS = int(binom.ppf(0.999, CALIBRATIONS, 0.05))


def test_buckets_end_at_powers_of_two_and_have_texts_enough() -> None:
    tokens = np.repeat([10, 50, 100, 200, 400, 3000], [20, 70, 100, 300, 90, 60])
    ends = bucket_ends(tokens, 100, 4096)
    assert ends == [128, 256, 4096]
    counts = np.diff([0, *((tokens <= end).sum() for end in ends)])
    assert counts.tolist() == [190, 300, 150]
    assert bucket_ends(tokens, 1000, 4096) == [4096]


def test_what_another_setting_beats_in_time_and_agreement_is_left_out() -> None:
    times, quality = [1.0, 0.9, 0.5, 0.6, 0.5, 0.1, 1.2], [1.0, 0.99, 0.98, 0.97, 0.95, 0.5, 1.0]
    assert undominated(times, quality) == [0, 1, 2, 5]
    assert undominated([1.0, 1.0, 1.5], [1.0, 1.0, 1.0]) == [0]
    assert undominated([1.0, 0.5, 0.5], [1.0, 1.0, 1.0]) == [0, 1]


def test_several_knobs_take_a_third_more_texts() -> None:
    assert texts_needed(0.99, 0.95, 1) == 299
    needed = texts_needed(0.99, 0.95, 2)
    assert needed - round(needed / 3) == 299
    assert [texts_needed(0.02, 0.975, knobs) for knobs in (1, 2)] == [1, 2], "one to choose by, one to judge by"


def test_a_bucket_of_its_own_takes_twice_the_texts_that_show_the_goal_without_a_change() -> None:
    fewest = texts_needed(0.99, 0.95, 1)
    for short, ends in ((2 * fewest - 1, [512]), (2 * fewest, [128, 512])):
        tokens = np.repeat([100, 400], [short, 2 * fewest])
        rows = Answers([{"one": 0.0}], tokens, np.ones((1, len(tokens)), dtype=bool))
        buckets, _ = summarise(
            rows, lambda *_: 1.0, defaults={"one": 0.0}, min_agreement=0.99, confidence=0.95, max_tokens=512
        )
        assert [bucket.high for bucket in buckets] == ends


def answers(settings: list[dict[str, float]], agree: np.ndarray) -> Answers:
    return Answers(settings, np.full(agree.shape[1], 100), agree)


def calibrated(rows: Answers, times: list[float]) -> Calibration:
    def predicted(tokens: int, knobs: Mapping[str, float]) -> float:
        return times[list(rows.settings).index(knobs)]

    buckets, settings = summarise(
        rows, predicted, defaults=rows.settings[-1], min_agreement=0.99, confidence=0.95, max_tokens=512
    )
    head = {"format_version": 1, "revision": "0" * 64, "confidence": 0.95, "data": "texts", "data_sha256": "0" * 64}
    return Calibration(**head, texts=rows.agree.shape[1], buckets=buckets, settings=settings)


def test_figures_come_from_the_texts_that_did_not_choose() -> None:
    generator = np.random.default_rng(1)
    settings = [{"one": float(place), "two": 0.0} for place in range(4)]
    agree = generator.random((4, 900)) < np.array([[1.0], [0.99], [0.9], [0.8]])
    row = calibrated(answers(settings, agree), [1.0, 0.8, 0.6, 0.4])
    assert [setting.agreement[0].trials for setting in row.settings] == [600] * 4
    assert row.buckets[0].texts == 600
    one_knob = [{"one": float(place)} for place in range(4)]
    row = calibrated(answers(one_knob, agree), [1.0, 0.8, 0.6, 0.4])
    assert [setting.agreement[0].successes for setting in row.settings] == agree.sum(axis=1).tolist()


def test_the_defaults_are_told_even_where_no_goal_chooses_them() -> None:
    settings = [{"one": float(place)} for place in range(3)]
    row = calibrated(answers(settings, np.ones((3, 400), dtype=bool)), [1.0, 0.5, 2.0])
    assert [setting.knobs["one"] for setting in row.settings] == [0, 1, 2]
    assert row.buckets[0].frontier == [0, 1]


@pytest.mark.parametrize("goal", [0.95, 0.99])
@pytest.mark.parametrize("several_knobs", [False, True], ids=["one-knob", "several-knobs"])
def test_goals_are_kept_in_at_least_95_of_100_calibrations(goal: float, several_knobs: bool) -> None:
    """Many settings lie just below the goal, where an error is likeliest, and their answers are independent."""
    generator = np.random.default_rng(7)
    true = np.array([1.0, *np.linspace(1.0, goal, 4), *np.full(20, goal - 0.0005)])
    times = np.linspace(1.0, 0.1, len(true)).tolist()
    settings = [{"one": float(place)} | ({"two": 0.0} if several_knobs else {}) for place in range(len(true))]
    texts = texts_needed(goal, 0.95, 1 + several_knobs) * 2
    errors = cheaper = 0
    for _ in range(CALIBRATIONS):
        rows = answers(settings, generator.random((len(true), texts)) < true[:, None])
        chosen = cheapest(calibrated(rows, times), 100, goal)
        errors += true[int(chosen.knobs["one"])] < goal
        cheaper += chosen.knobs["one"] > 0
    assert errors <= MOST_ERRORS
    assert cheaper > 2 * MOST_ERRORS
