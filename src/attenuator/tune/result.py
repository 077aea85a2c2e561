"""Result of a tuning: each bundle's settings with agreement and speed, the choice, and all of it in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attenuator.calibration.goals import default_setting, estimate, fewest_estimated, keeping_default
from attenuator.calibration.proportions import fewest_divided, fewest_texts, lower_bound, wilson
from attenuator.calibration.records import Proportion
from attenuator.calibration.schema import Calibration, shown
from attenuator.calibration.turns import FASTER
from attenuator.ops.knobs import Knobs

CONFIDENCE = 0.975  # of intervals and promises, as a calibration's
CHOOSING_SHARE = 0.4  # of the texts; the others judge


def texts_to_give(goal: float) -> int:
    """How many texts promise an agreement if no answer changes: those that judge are a part of them."""
    return fewest_divided(fewest_texts(goal, CONFIDENCE), CHOOSING_SHARE)


@dataclass(frozen=True, slots=True)
class Point:
    """A setting of one bundle over all texts that judge.

    Attributes:
        knobs: value by name; empty for the default, which may depend on the length.
        agreement: with the exact answers in fp32.
        accuracy: None without labels.
        gain: how many times as fast as the exact fp32 bundle.
        low: lower end of a 95 % interval of that.
        high: its upper end.
    """

    knobs: Knobs
    agreement: Proportion
    accuracy: Proportion | None
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One bundle.

    Attributes:
        precision: its number format.
        calibration: its own.
        points: its settings, the exact one first.
        default: what requests that set nothing get.
        taught: whether the checkpoint learned to bear a small `keep`.
    """

    precision: str
    calibration: Calibration
    points: Sequence[Point]
    default: Point
    taught: bool = False

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.precision}, taught" if self.taught else self.precision

    @property
    def is_exact(self) -> bool:
        """Whether every length's default is the exact setting."""
        exact = self.calibration.settings[0]
        return all(default_setting(self.calibration, bucket.high) is exact for bucket in self.calibration.buckets)

    @property
    def promised(self) -> float:
        """What the texts promise of the default: the mean of the bounds of each range of lengths, by its texts.

        One bound of all texts would be too high: each range's choice was favoured by chance, and these errors add up.
        """
        calibration, total = self.calibration, 0.0
        for index, bucket in enumerate(calibration.buckets):
            kept = keeping_default(calibration, index)
            total += bucket.texts * calibration.bounds(index)[kept - 1]
        return total / sum(bucket.texts for bucket in calibration.buckets)

    @property
    def setting(self) -> str:
        """The default in words, by length where it depends on it."""
        ends = [bucket.high for bucket in self.calibration.buckets]
        named = [shown(default_setting(self.calibration, end).knobs) for end in ends]
        last = [place for place in range(len(ends)) if place + 1 == len(ends) or named[place + 1] != named[place]]
        parts = [named[place] if place == last[-1] else f"{named[place]} up to {ends[place]} tokens" for place in last]
        return ", ".join(parts) + (" above" if len(parts) > 1 else "")


@dataclass(frozen=True, slots=True)
class Changed:
    """A text whose answer changes.

    Attributes:
        text: its beginning, on one line.
        exact: the exact answer, label and score.
        tuned: that of the chosen bundle.
    """

    text: str
    exact: tuple[str, float]
    tuned: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A finished tuning.

    Attributes:
        name: of the model.
        min_agreement: the goal.
        exact_a_second: texts a second of the exact fp32 bundle on one core.
        candidates: the fp32 bundle first.
        chosen: place of the one that was taken.
        selection: how tokens are left out, in words; empty where none are.
        texts: how many judged.
        alike: a sentence on what all that judged have in common; empty where they differ.
        tokens: of a judging text, in the mean.
        changed: some of the texts whose answers change, those that the exact answer was surest of first.
        changed_of: how many change.
        tried: what else was looked at, a sentence each.
        machine: the times are of.
    """

    name: str
    min_agreement: float
    exact_a_second: float
    candidates: Sequence[Candidate]
    chosen: int
    selection: str
    texts: int
    alike: str
    tokens: float
    changed: Sequence[Changed]
    changed_of: int
    tried: Sequence[str]
    machine: str

    @property
    def choice(self) -> Candidate:
        """The bundle that was taken."""
        return self.candidates[self.chosen]


def fastest_that_keeps(candidates: Sequence[Candidate], min_agreement: float) -> int:
    """The place of the fastest candidate that is estimated to keep the goal; the first where none surely wins over it.

    Args:
        candidates: the one to fall back on first.
        min_agreement: the goal.
    """
    best = 0
    for place, each in enumerate(candidates):
        keeps = shows(each.default.agreement, min_agreement)
        if keeps and each.default.gain >= FASTER * candidates[best].default.gain:
            best = place
    return best


def shows(row: Proportion, min_agreement: float) -> bool:
    """Whether texts show that a setting keeps the goal, as they do for a default: more likely than not, no promise."""
    return estimate(row.successes, row.trials) >= min_agreement


def sentences(tuned: Tuned, output: str) -> list[str]:
    """What a person reads at the end.

    Args:
        tuned: the result.
        output: the bundle's folder, as the user named it.
    """
    choice = tuned.choice
    lines = [f"exact: {_count(tuned.exact_a_second)} texts a second on one core, {tuned.tokens:.0f} tokens in the mean"]
    lines += [_line(tuned, each) for each in tuned.candidates]
    lines += _promise(tuned)
    if tuned.alike:
        lines.append(f"  warning: {tuned.alike}")
    if choice.precision != "fp32":
        lines.append(
            "  in int8 even a request that has every token computed is rounded; --precision fp32 makes a bundle that "
            "can answer exactly"
        )
    accuracy, before = choice.default.accuracy, tuned.candidates[0].points[0].accuracy
    if accuracy and before:
        lines.append(f"accuracy: {accuracy.value:.3f}, exact {before.value:.3f}")
    parts = [tuned.selection, f"default {choice.setting}"]
    if choice.is_exact:
        parts = [
            "requests that set nothing compute every token",
            tuned.selection and f"at a lower keep {tuned.selection}",
        ]
    lines.append(f"bundle: {output}, {choice.name}, {', '.join(filter(None, parts))}")
    lines.append(f"Serve it: attenuator serve {output}")
    return lines


def _promise(tuned: Tuned) -> list[str]:
    """What the texts promise of the default; and where they are too few for the goal, how many it takes."""
    goal, texts, choice = tuned.min_agreement, tuned.texts, tuned.choice
    is_exact = choice.is_exact and choice.precision == "fp32"
    if is_exact:
        promise = "promise: requests that set nothing compute every token, so their answers are the checkpoint's"
    else:
        promise = (
            f"promise: {texts} texts show, at {100 * CONFIDENCE:g} % confidence, that at least "
            f"{math.floor(1000 * choice.promised) / 10:.1f}% of the answers stay the same on texts like these"
        )
    most = lower_bound(texts, texts, CONFIDENCE)
    if most >= goal:
        return [promise]
    line = (
        f"  {'of a faster setting, ' if is_exact else ''}so few texts cannot promise {goal}, whatever they answer: "
        f"{texts} can promise {math.floor(1000 * most) / 1000:g} at most; give {texts_to_give(goal):,} or more"
    )
    if estimate(texts, texts) < goal:
        choose = fewest_divided(fewest_estimated(goal), CHOOSING_SHARE)
        line += f". Nor can they choose a setting for {goal}, which takes {choose:,}"
    return [promise, line]


def _line(tuned: Tuned, each: Candidate) -> str:
    """One candidate against the exact bundle."""
    point = each.default
    row = point.agreement
    low, high = interval(row)
    measured = f"measured {row.value:.3f}, {low:.3f} to {high:.3f} on {row.trials} texts"
    speed = f"{_count(tuned.exact_a_second * point.gain)} texts a second, {point.gain:.1f} times as fast"
    goal = f"at {100 * tuned.min_agreement:g} % agreement"
    enough = shows(row, tuned.min_agreement)
    if each.is_exact and each.precision == "fp32":
        lacks = f"no setting that was tried keeps it in less time; {what_wins(tuned)}"
        return f"{goal}, fp32: {lacks if enough else 'so few texts cannot choose a setting'}"
    if not enough:
        why = "its rounding alone does not keep" if row.value < tuned.min_agreement else "so few texts do not show"
        taken = "taken as asked" if each is tuned.choice else "not taken"
        return f"{each.name}: {why} {tuned.min_agreement:g} ({measured}): {taken}"
    alone = " by rounding alone, every token computed" if each.is_exact else f" with {each.setting}"
    return f"{goal}, {each.name}: {speed}{alone} ({measured})"


def what_wins(tuned: Tuned) -> str:
    """What is better where leaving out tokens does not pay."""
    if tuned.choice.taught:
        return "teaching it to do with fewer tokens is what wins here"
    if tuned.choice.precision == "fp32":
        return "exact attention is the better choice here"
    return "int8 is what wins here"


def interval(row: Proportion) -> tuple[float, float]:
    """A 95 % interval, whose lower end is as sure as a bound at `CONFIDENCE`."""
    low, high = wilson(row.successes, row.trials, 2 * CONFIDENCE - 1)
    return min(low, row.value), max(high, row.value)


def _count(number: float) -> str:
    """Texts a second, in as many digits as say something."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
