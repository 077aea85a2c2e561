"""Intervals and bounds against SciPy, and how many texts a goal takes."""

import pytest
from scipy.stats import binomtest

from attenuator.calibration.proportions import (
    fewest_divided,
    fewest_texts,
    lower_bound,
    proportion,
    upper_bound,
    wilson,
)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 1), (1, 1), (0, 40), (7, 40), (39, 40), (40, 40), (2990, 3000), (9_000, 20_000)]
)
def test_intervals_and_bounds_are_those_of_scipy(successes: int, trials: int, confidence: float) -> None:
    two_sided = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((two_sided.low, two_sided.high), abs=1e-12)
    one_sided = binomtest(successes, trials, alternative="greater").proportion_ci(confidence, method="exact")
    assert lower_bound(successes, trials, confidence) == pytest.approx(one_sided.low, abs=1e-9)
    other_side = binomtest(successes, trials, alternative="less").proportion_ci(confidence, method="exact")
    assert upper_bound(successes, trials, confidence) == pytest.approx(other_side.high, abs=1e-9)


@pytest.mark.parametrize("trials", [1, 2, 3, 59, 299, 872, 2995])
def test_every_count_is_a_proportion_that_the_file_may_have(trials: int) -> None:
    for successes in {0, 1, trials // 2, trials - 1, trials}:
        row = proportion(successes, trials, 0.95)
        assert row.low <= row.value <= row.high
        assert row.bound <= row.value


@pytest.mark.parametrize(("agreement", "texts"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)])
def test_with_fewer_texts_an_agreement_cannot_be_shown(agreement: float, texts: int) -> None:
    assert fewest_texts(agreement, 0.95) == texts
    assert lower_bound(texts, texts, 0.95) >= agreement > lower_bound(texts - 1, texts - 1, 0.95)


@pytest.mark.parametrize("share", [0.0, 1 / 3, 0.4, 0.5, 0.9])
def test_of_fewer_texts_too_few_are_left_to_judge(share: float) -> None:
    for judging in [*range(1, 200), 36_888_793]:
        count = fewest_divided(judging, share)
        assert count - round(share * count) == judging, "one more leaves one more at most"
        assert count - 1 - round(share * (count - 1)) < judging
