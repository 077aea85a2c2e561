"""When live agreement counts as low: the decision alone, on counted comparisons."""

from pathlib import Path

import calibrations
import numpy as np
import pytest
import tiny

from attenuator.calibration.proportions import upper_bound
from attenuator.runtime import load
from attenuator.serve.observe import live_agreement
from attenuator.serve.observe.live_agreement import (
    CONFIDENCE,
    FEWEST,
    FEWEST_SCORES,
    STEP,
    WINDOW,
    LiveAgreement,
    Window,
)

CHEAP = {"num_hashes": 4}


def added(window: Window, outcomes: list[bool]) -> list[int]:
    """Adds comparisons; after which of them `low` changed."""
    return [count for count, outcome in enumerate(outcomes, 1) if window.add(outcome)]


def test_nothing_is_said_before_there_are_enough() -> None:
    window = Window(bound=0.99)
    assert added(window, [False] * (FEWEST - 1)) == []
    assert (window.low, window.judged) == (False, False)
    assert added(window, [False]) == [1]
    assert (window.low, window.judged) == (True, True)


def test_low_is_what_the_bound_says_and_lasts_until_the_share_is_back() -> None:
    window = Window(bound=0.95)
    assert added(window, [True] * FEWEST) == []
    changes = added(window, [False] * FEWEST)
    assert len(changes) == 1
    agreed, trials = FEWEST, FEWEST + changes[0]
    assert upper_bound(agreed, trials, CONFIDENCE) < 0.95 <= upper_bound(agreed, trials - STEP, CONFIDENCE)
    failures = len(window.outcomes) - window.agreed
    while window.low:
        assert window.share < window.bound
        added(window, [True] * STEP)
    assert failures / len(window.outcomes) <= 0.05
    assert (len(window.outcomes) - STEP) * 0.05 < failures, "not before the share was back"


def test_only_the_newest_count() -> None:
    window = Window(bound=0.9)
    added(window, [True] * 5 * WINDOW)
    assert (window.agreed, len(window.outcomes), window.share) == (WINDOW, WINDOW, 1.0)
    added(window, [False] * WINDOW)
    assert (window.agreed, window.low) == (0, True)


@pytest.mark.parametrize("bound", [0.9, 0.99])
def test_chance_alone_hardly_ever_raises_it(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At an agreement just at the bound, in 100 services of 5,000 comparisons; the module says 1 % of 10,000."""
    known: dict[int, float] = {}

    def remembered(agreed: int, trials: int, confidence: float) -> float:
        key = agreed * (WINDOW + 1) + trials
        if key not in known:
            known[key] = upper_bound(agreed, trials, confidence)
        return known[key]

    monkeypatch.setattr(live_agreement, "upper_bound", remembered)
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        alarms += bool(added(Window(bound), (random.random(5000) < bound).tolist()))
    assert alarms <= 5  # with a chance of 1 % each, more than 5 of 100 have a chance of 0.05 %


def test_calibrated_settings_have_a_window_for_each_length(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "yoso", "yoso")
    model = load(folder, check=False)
    settings = [({"num_hashes": 0}, [1000, 1000]), (CHEAP, [900, 990])]
    model.calibration = calibrations.parsed(calibrations.calibration(model.manifest.revision, [16, 8192], settings))
    live = LiveAgreement(model)
    first, second = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)
    assert live.compare(CHEAP, 10, first, first).agreed
    assert not live.compare(CHEAP, 100, first, second).agreed
    assert live.compare(None, 100, first, second) == (False, None), "an escalated text is none of all texts"
    assert live.compare({"num_hashes": 5}, 100, first, second) == (False, None), "not calibrated: no bound to keep"
    bounds = [setting.agreement[bucket].bound for bucket, setting in enumerate([model.calibration.settings[1]] * 2)]
    assert [(window.bound, window.agreed) for window in live.windows.values()] == [(bounds[0], 1), (bounds[1], 0)]
    assert (live.lengths(16), live.lengths(17)) == ("1-16", "17-8192")
    assert list(live.judged()) == []
    changed = [live.compare(CHEAP, 100, first, second).changed for _ in range(FEWEST)]
    assert sum(each is not None for each in changed) == 1
    assert list(live.judged()) == [(CHEAP, "17-8192", True)]


def test_scores_of_a_regression_are_compared_by_the_deviation_of_exact_ones(tmp_path: Path) -> None:
    model = load(tiny.write(tmp_path / "yoso", "yoso"), check=False)
    scored = model.with_manifest(model.manifest.model_copy(update={"task": "regression", "labels": ["score"]}))
    assert scored.calibration is None
    live = LiveAgreement(scored)
    exact = np.array([-1, 1] * FEWEST_SCORES, np.float32)[:, None]  # standard deviation 1
    outcomes = [live.compare(CHEAP, 10, row + 0.09, row).agreed for row in exact[:FEWEST_SCORES]]
    assert outcomes == [None] * (FEWEST_SCORES - 1) + [True]
    assert live.compare(CHEAP, 10, exact[0] + 0.12, exact[0]).agreed is False
    assert live.lengths(10) == "all"
