"""How sure single answers are: the fit on errors that are known, its limits, and what the bundles' files say."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attenuator.bundle import Task, read_manifest
from attenuator.calibration import read_calibration
from attenuator.calibration.certainty import Deviations, expected_share, fit, probability
from attenuator.calibration.schema import Bucket, Calibration, Certainty
from attenuator.runtime import KnobTable
from attenuator.runtime.certainty import Judge
from attenuator.runtime.scores import agrees, margins, tolerance

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "examples" / "bundles").glob("*/calibration.json"))
BUCKETS = [Bucket(low=1, high=100, texts=1), Bucket(low=101, high=1000, texts=1)]
LABELS: dict[Task, int] = {"single_label": 4, "multi_label": 12, "regression": 1}
THRESHOLDS = [0.3, 0.5, 0.7] * 4
NOISE = (0.15, 0.6)
TEXTS = 6000
WIDTH, FEWEST = 0.1, 150


def simulated(task: Task, seed: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Exact logits, those of two settings, and lengths; errors are normal, twice as large for long texts."""
    random = np.random.default_rng(seed)
    tokens = random.integers(1, 1000, TEXTS)
    exact = random.normal(0, 1.5, (TEXTS, LABELS[task]))
    size = np.where(tokens > 100, 2.0, 1.0)[:, np.newaxis]
    noisy = [exact + noise * size * random.standard_normal(exact.shape) for noise in NOISE]
    return exact, noisy, tokens


def fitted(task: Task, exact: np.ndarray, noisy: list[np.ndarray], tokens: np.ndarray) -> Certainty:
    about: dict[str, Any] = {"task": task, "thresholds": THRESHOLDS}
    deviations = [
        Deviations({"knob": index}, *margins(each, exact, **about), agrees(each, exact, **about))
        for index, each in enumerate(noisy)
    ]
    return fit(deviations, tokens, BUCKETS, tolerance(exact) if task == "regression" else None)


@pytest.mark.parametrize("task", LABELS)
def test_probabilities_are_those_observed_on_other_texts(task: Task) -> None:
    certainty = fitted(task, *simulated(task, 0))
    exact, noisy, tokens = simulated(task, 1)
    about: dict[str, Any] = {"task": task, "thresholds": THRESHOLDS}
    predicted, agree = [], []
    for row, logits in zip(certainty.settings, noisy, strict=True):
        ours, _ = margins(logits, logits, **about)
        predicted += [
            probability(certainty, row, int(length > 100), one) for one, length in zip(ours, tokens, strict=True)
        ]
        agree += agrees(logits, exact, **about).tolist()
    values, right = np.array(predicted), np.array(agree, dtype=float)
    judged = 0
    for low in np.arange(0, 1, WIDTH):
        inside = (values >= low) & (values < low + WIDTH)
        if inside.sum() >= FEWEST:
            error = np.sqrt((values * (1 - values))[inside].sum()) / inside.sum()
            assert abs(right[inside].mean() - values[inside].mean()) <= 0.02 + 3 * error, low
            judged += 1
    assert judged >= (2 if task == "regression" else 5)
    for row in certainty.settings:
        for bucket in range(2):
            shares = [expected_share(certainty, row, bucket, goal) for goal in (0.5, 0.6, 0.9, 0.99, 0.9999)]
            assert shares == sorted(shares, reverse=True)
            assert shares[-1] == 0


def test_a_wider_margin_a_shorter_text_and_a_better_setting_are_surer_but_never_certain() -> None:
    certainty = fitted("single_label", *simulated("single_label", 0))
    fine, coarse = certainty.settings
    values = [probability(certainty, fine, 0, [margin] * 3) for margin in (0, 0.1, 0.3, 1, 1e3, 1e30)]
    assert values == sorted(values)
    assert values[0] < 0.6
    assert values[-1] == (TEXTS + 1) / (TEXTS + 2)
    assert probability(certainty, fine, 1, [0.3] * 3) < values[2]
    assert probability(certainty, coarse, 0, [0.3] * 3) < values[2]
    assert probability(certainty, fine, 0, [0.3, 50, 50]) > values[2], "one rival, not three"


def test_with_two_labels_no_answer_is_less_sure_than_a_coin() -> None:
    random = np.random.default_rng(3)
    exact = random.standard_normal((400, 1))
    wrong = Deviations({"num_hashes": 1}, -exact, exact, np.zeros(400, dtype=bool))
    certainty = fit([wrong], np.full(400, 50), BUCKETS)
    assert probability(certainty, certainty.settings[0], 0, [0.1]) == 0.5


def test_settings_whose_answers_never_or_wildly_change_are_fitted_too() -> None:
    exact, _, tokens = simulated("single_label", 0)
    certainty = fitted("single_label", exact, [exact, -exact, np.zeros_like(exact)], tokens)
    same, opposite, nothing = certainty.settings
    assert same.scale == [0, 0]
    assert probability(certainty, same, 0, [1.0] * 3) > 0.99
    assert probability(certainty, opposite, 0, [1.0] * 3) < 0.1
    assert 0.1 < probability(certainty, nothing, 0, [0.0] * 3) < 0.4, "one label of four"
    for row in certainty.settings:
        assert all(np.isfinite([*row.scale, row.intercept, row.slope]))


def test_many_labels_and_margins_that_mislead_are_fitted_too() -> None:
    """Rivals' margins move together: taken for independent ones they say far too little. Wide ones may mislead."""
    random = np.random.default_rng(0)
    exact = random.normal(0, 1, (400, 60))
    exact[np.arange(400), random.integers(60, size=400)] += 6
    noisy = [exact + noise * random.standard_normal(exact.shape) for noise in (0.5, 1.5, 4.0)]
    pairs = [margins(each, exact, task="single_label", thresholds=()) for each in noisy]
    deviations = [
        Deviations({"knob": index}, *pair, agrees(each, exact, task="single_label", thresholds=()))
        for index, (each, pair) in enumerate(zip(noisy, pairs, strict=True))
    ]
    misled, _ = pairs[0]
    width = misled.min(axis=1)
    deviations.append(Deviations({"knob": 3}, misled, pairs[0][1], width < np.quantile(width, 0.7)))
    certainty = fit(deviations, np.full(400, 10), BUCKETS[:1])
    for row, one in zip(certainty.settings, deviations, strict=True):
        values = [probability(certainty, row, 0, each) for each in one.margins]
        assert np.mean(values) == pytest.approx(one.agree.mean(), abs=0.03)
    assert certainty.settings[3].slope == 0


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return dict(json.loads((ROOT / "examples/bundles/reviews/calibration.json").read_text()))


def test_a_file_without_certainty_is_read(content: dict[str, Any]) -> None:
    assert Calibration.model_validate_json(json.dumps(content | {"certainty": None})).certainty is None
    old = {name: value for name, value in content.items() if name != "certainty"}
    assert Calibration.model_validate_json(json.dumps(old)).certainty is None


DAMAGES = {
    "a length too few": ("scale", [0.1], "one scale and shares for each of 3 buckets"),
    "below zero": ("scale", [0.1, -0.1, 0.1], "greater than or equal to 0"),
    "falls with the margin": ("slope", -1.0, "greater than or equal to 0"),
    "a share too few": ("sure", [[0.5]] * 3, "one share for each of 9 goals"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_certainty_is_refused(content: dict[str, Any], name: str) -> None:
    field, value, sentence = DAMAGES[name]
    damaged = copy.deepcopy(content)
    damaged["certainty"]["settings"][0][field] = value
    with pytest.raises(ValueError, match=sentence):
        Calibration.model_validate_json(json.dumps(damaged))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_bundles_say_how_sure_their_answers_are(folder: Path) -> None:
    """By margin, setting and length; and a way up that ends at the exact setting."""
    manifest = read_manifest(folder)
    calibration = read_calibration(folder, manifest)
    assert calibration is not None
    judge = Judge(manifest, KnobTable(manifest.name, manifest.knobs), calibration)
    exact, tokens = judge.knobs.exact(), 60
    cheapest = judge.knobs.check(calibration.frontier(calibration.bucket(tokens))[-1].knobs)
    away, near = (_logits(judge, margin) for margin in (6.0, 0.02))
    assert judge.probability(near, exact, tokens) == 1.0
    sure, unsure = (judge.probability(each, cheapest, tokens) for each in (away, near))
    assert sure is not None
    assert unsure is not None
    assert unsure < 0.7
    assert unsure < sure < 1
    assert judge.start(tokens, 1.0, lambda knobs: True) == exact
    assert judge.start(manifest.max_tokens, 0.5, lambda knobs: True) != exact
    assert judge.start(tokens, 0.5, lambda knobs: False) is None
    knobs, seen = cheapest, [cheapest]
    while surer := judge.surer(near, knobs, tokens, 0.999, lambda knobs: True):
        knobs = surer[0]
        assert knobs not in seen
        seen.append(knobs)
    assert knobs == exact
    permitted = judge.surer(near, cheapest, tokens, 0.999, lambda knobs: knobs != exact)
    assert exact not in permitted
    assert permitted, "the others, from the most accurate down"


def _logits(judge: Judge, margin: float) -> np.ndarray:
    """Logits whose nearest margin is this wide, the others far."""
    manifest = judge.manifest
    if manifest.task == "multi_label":
        lows = np.array(manifest.thresholds)
        return np.asarray(np.log(lows / (1 - lows)) + np.where(np.arange(len(lows)), 9.0, margin), dtype=np.float32)
    return np.array([margin, 0.0], dtype=np.float32)


def test_a_setting_between_those_measured_is_taken_for_the_next_less_accurate_one() -> None:
    folder = ROOT / "examples/bundles/reviews"
    manifest = read_manifest(folder)
    judge = Judge(manifest, KnobTable(manifest.name, manifest.knobs), read_calibration(folder, manifest))
    [name] = judge.knobs.names
    logits = np.array([0.3, 0.0], dtype=np.float32)

    def at(value: int) -> float | None:
        return judge.probability(logits, {name: value}, 60)

    assert at(9) == at(8)
    assert at(511) == at(256)
    assert at(3) is None, "less accurate than everything measured"
