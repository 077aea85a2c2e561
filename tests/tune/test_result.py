"""What a tuning takes and says, from numbers."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attenuator.bundle import Manifest
from attenuator.calibration.goals import estimate
from attenuator.calibration.proportions import lower_bound, proportion
from attenuator.calibration.schema import Bucket, Calibration, Setting
from attenuator.commands.calibrate.pipeline import Outcome
from attenuator.commands.calibrate.texts import Texts
from attenuator.tune.changes import alike
from attenuator.tune.page import report_page
from attenuator.tune.result import CONFIDENCE, Candidate, Changed, Point, Tuned, fastest_that_keeps, sentences
from attenuator.tune.texts import Parts, divided

TEXTS = 600


def point(same: int, gain: float, **knobs: float) -> Point:
    return Point(knobs, proportion(same, TEXTS, CONFIDENCE), None, gain, 0.98 * gain, 1.02 * gain)


def candidate(precision: str, same: dict[float, int], gains: dict[float, float], default: float) -> Candidate:
    """With one bucket and the knob keep."""
    settings = [
        Setting.model_validate({"knobs": {"keep": keep}, "agreement": [proportion(count, TEXTS, CONFIDENCE)]})
        for keep, count in same.items()
    ]
    calibration = Calibration(
        format_version=1,
        revision="0" * 64,
        reference=None if precision == "fp32" else "1" * 64,
        confidence=CONFIDENCE,
        data="texts.txt",
        data_sha256="0" * 64,
        texts=TEXTS,
        buckets=[Bucket(low=1, high=512, texts=TEXTS)],
        settings=settings,
        default_agreement=0.99,
    )
    points = [point(count, gains[keep], keep=keep) for keep, count in same.items()]
    return Candidate(precision, calibration, points, point(same[default], gains[default]))


EXACT = {1.0: 600, 0.5: 590}
PLAIN = candidate("fp32", EXACT | {0.5: 596}, {1.0: 1.0, 0.5: 2.0}, 0.5)
ROUNDED = candidate("int8", {1.0: 599, 0.5: 595}, {1.0: 2.2, 0.5: 4.4}, 0.5)


def tuned(*candidates: Candidate, taken: int = 0) -> Tuned:
    changed = [Changed("a <b> text", ("up", 0.9), ("down", 0.6))]
    return Tuned("mine", 0.99, 338.2, candidates, taken, "tokens left out are dropped, schedule first", TEXTS, "", 49.4,
                 changed, 3, ["mca was not tried."], "a CPU")  # fmt: skip


def test_the_fastest_that_keeps_the_goal_is_taken() -> None:
    assert fastest_that_keeps([PLAIN, ROUNDED], 0.99) == 1
    assert fastest_that_keeps([PLAIN], 0.99) == 0
    lossy = replace(ROUNDED, default=point(593, 4.4))
    assert fastest_that_keeps([PLAIN, lossy], 0.99) == 0, "its rounding changes too many answers"
    no_faster = replace(ROUNDED, default=point(598, 2.05))
    assert fastest_that_keeps([PLAIN, no_faster], 0.99) == 0, "not worth another answer"


def test_the_sentences_say_speed_agreement_promise_and_what_to_do() -> None:
    lines = sentences(tuned(PLAIN, ROUNDED, taken=1), "bundles/mine")
    assert lines[0] == "exact: 338 texts a second on one core, 49 tokens in the mean"
    assert lines[1].startswith("at 99 % agreement, fp32: 676 texts a second, 2.0 times as fast with keep 0.5 (measured")
    assert "int8: 1,488 texts a second, 4.4 times as fast with keep 0.5 (measured 0.992, 0.981 to" in lines[2]
    assert lines[3] == (
        "promise: 600 texts show, at 97.5 % confidence, that at least 98.0% of the answers stay the same on texts "
        "like these"
    )
    assert "can answer exactly" in lines[4], "int8 cannot"
    assert lines[-1] == "Serve it: attenuator serve bundles/mine"


def test_the_promise_is_the_mean_of_the_bounds_of_each_range() -> None:
    """A bound of all texts together would be missed more often than it says, since each range has its own choice."""
    calibration = PLAIN.calibration
    rows = [row.model_copy(update={"agreement": [row.agreement[0]] * 2}) for row in calibration.settings]
    buckets = [Bucket(low=1, high=64, texts=TEXTS), Bucket(low=65, high=512, texts=TEXTS)]
    two = calibration.model_copy(update={"buckets": buckets, "settings": rows})
    own = proportion(596, TEXTS, CONFIDENCE).bound
    assert replace(PLAIN, calibration=two).promised == pytest.approx(own)
    assert own < proportion(2 * 596, 2 * TEXTS, CONFIDENCE).bound
    assert candidate("fp32", EXACT, {1.0: 1.0, 0.5: 2.0}, 1.0).promised == 1, "the exact setting is its own reference"


def test_few_texts_choose_nothing_and_a_sentence_says_how_many_do() -> None:
    count = 24
    same, faster = proportion(count, count, CONFIDENCE), {1.0: 1.0, 0.5: 2.0}
    settings = [{"knobs": {"keep": keep}, "agreement": [same]} for keep in faster]
    fields = {"settings": [Setting.model_validate(each) for each in settings], "texts": count}
    fields["buckets"] = [Bucket(low=1, high=512, texts=count)]
    plain, rounded = (
        replace(
            each,
            calibration=each.calibration.model_copy(update=fields),
            points=[replace(row, agreement=same) for row in each.points],
            default=replace(each.points[0], agreement=same),
        )
        for each in (PLAIN, ROUNDED)
    )
    assert plain.is_exact
    assert fastest_that_keeps([plain, rounded], 0.99) == 0, "24 of 24 do not show 0.99"
    few = replace(tuned(plain, rounded), texts=count)
    _, fp32, int8, promise, sentence, *_ = sentences(few, "bundles/mine")
    assert fp32 == "at 99 % agreement, fp32: so few texts cannot choose a setting"
    assert int8 == "int8: so few texts do not show 0.99 (measured 1.000, 0.862 to 1.000 on 24 texts): not taken"
    assert promise == "promise: requests that set nothing compute every token, so their answers are the checkpoint's"
    assert sentence == (
        "  of a faster setting, so few texts cannot promise 0.99, whatever they answer: 24 can promise 0.857 at most; "
        "give 613 or more. Nor can they choose a setting for 0.99, which takes 81"
    )
    _, _, int8, promise, sentence, *_ = sentences(replace(few, chosen=1), "bundles/mine")
    assert "taken as asked" in int8, "by --precision int8"
    assert "at least 85.7% of the answers stay the same" in promise
    assert sentence.startswith("  so few texts cannot promise 0.99, ")
    assert "Nor can" not in "".join(sentences(replace(few, min_agreement=0.95), "bundles/mine"))


@pytest.mark.parametrize("count", range(41, 52))
def test_as_many_texts_as_are_named_do_promise_the_goal_and_one_fewer_does_not(count: int) -> None:
    def judging(given: int) -> int:
        encoded: Any = [None] * given
        return len(divided(Texts("texts.txt", "0" * 64, encoded, None), encoded, given).judging.encoded)

    texts = judging(count)
    line = next(row for row in sentences(replace(tuned(PLAIN), texts=texts), "bundles/mine") if "so few texts" in row)
    promising, *choosing = (int(number) for number in re.findall(r"(?:give|takes) (\d+)", line))
    agreeing = [judging(given) for given in (promising - 1, promising)]
    fewer, enough = (lower_bound(each, each, CONFIDENCE) for each in agreeing)
    assert fewer < 0.99 <= enough
    for each in choosing:
        agreeing = [judging(given) for given in (each - 1, each)]
        fewer, enough = (estimate(agree, agree) for agree in agreeing)
        assert fewer < 0.99 <= enough


def test_how_many_texts_are_too_few_is_known_at_once_however_high_the_goal() -> None:
    lines = sentences(replace(tuned(PLAIN), min_agreement=1 - 1e-10), "bundles/mine")
    assert "Nor can they choose a setting for 0.9999999999, which takes 8,333,332,6" in "".join(lines)


@pytest.mark.parametrize(
    ("logits", "labels", "common"),
    [
        ([[1, 0], [2, 0]], None, "get the same answer"),
        ([[1, 0], [2, 0]], [0, 1], "get the same answer"),
        ([[1, 0], [0, 2]], [1, 1], "have the same label"),
        ([[1, 0], [0, 2]], [0, 1], ""),
        ([[1, 0], [0, 2]], None, ""),
    ],
)
def test_texts_that_are_all_of_one_label_are_warned_of(
    logits: list[list[float]], labels: list[int] | None, common: str
) -> None:
    said = said_of(logits, labels, "single_label")
    assert bool(said) == bool(common)
    assert f"of these texts {common}, and" in said or not said
    assert said.endswith(": give texts of every label") or not said
    lines = sentences(replace(tuned(PLAIN), alike=said), "bundles/mine")
    assert [line for line in lines if "warning" in line] == [f"  warning: {said}"] * bool(said)


def test_a_regression_is_advised_on_scores() -> None:
    assert said_of([[1.5], [1.5]], None, "regression").endswith(": give texts of low and of high scores")
    assert not said_of([[1.5], [0.5]], None, "regression")


def said_of(logits: list[list[float]], labels: list[int] | None, task: str) -> str:
    """What is said of texts with these exact answers."""
    exact = np.array(logits, np.float32)
    outcome = Outcome(PLAIN.calibration, [], exact[None], exact)
    texts = Texts("texts.jsonl", "0" * 64, [], None if labels is None else np.eye(2, dtype=bool)[labels])
    about: dict[str, Any] = {"task": task, "thresholds": None}
    return alike(outcome, Manifest.model_construct(**about), Parts(texts, texts, [], []))


def test_where_leaving_out_tokens_does_not_pay_the_sentence_says_what_does() -> None:
    plain = candidate("fp32", EXACT, {1.0: 1.0, 0.5: 2.0}, 1.0)
    rounded = candidate("int8", {1.0: 599, 0.5: 580}, {1.0: 2.5, 0.5: 4.0}, 1.0)
    lines = sentences(tuned(plain, rounded, taken=1), "bundles/mine")
    assert "no setting that was tried keeps it in less time; int8 is what wins here" in lines[1]
    assert "2.5 times as fast by rounding alone, every token computed" in lines[2]
    lines = sentences(tuned(plain), "bundles/mine")
    assert "exact attention is the better choice here" in lines[1]
    lossy = candidate("int8", {1.0: 590, 0.5: 580}, {1.0: 2.5, 0.5: 4.0}, 1.0)
    assert "its rounding alone does not keep 0.99" in sentences(tuned(plain, lossy), "bundles/mine")[2]


@pytest.mark.parametrize("candidates", [(PLAIN,), (PLAIN, ROUNDED)])
def test_the_page_holds_every_setting_and_escapes_texts(candidates: tuple[Candidate, ...]) -> None:
    page = report_page(tuned(*candidates), "bundles/<mine>")
    assert page.count("<circle") == 2 * len(candidates) + 1
    assert page.count("<tr") == 1 + 3 * len(candidates) + 2
    assert "a &lt;b&gt; text" in page
    assert "<mine>" not in page
    assert "3 of 600" in page
