"""From answers and times to intervals, frontiers and a choice for each range of lengths.

What is recommended must keep an agreement. So that the search for it does not flatter it, a third of a range's texts,
drawn by lot, chooses the order in which settings are tried, from the exact one to the fastest; the others give the
bounds, and the walk ends at the first setting whose bound is too low, as that of a calibrated goal does (see
`calibration.goals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attenuator.calibration.frontier import CHOOSING_SHARE, texts_needed, undominated
from attenuator.calibration.goals import reaching
from attenuator.calibration.proportions import fewest_texts, proportion
from attenuator.calibration.records import Proportion
from attenuator.calibration.turns import FASTER
from attenuator.compare.candidates import Method
from attenuator.compare.data import SEED, Range
from attenuator.compare.grid import Setting

SEVERAL = 2  # as a bundle of several knobs: a part of the texts chooses

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One method at one setting.

    Attributes:
        method: what was exported.
        setting: value by knob.
        exact: its exact setting.
        agree: bool `[texts]`, whether the answer is the reference's.
        correct: bool `[texts]`, whether it is the label given; None without labels.
        ms: time of one text of each range, in milliseconds.
        share: the same as a share of the reference's, taken in turns with it.
        slowest: upper end of the share's interval; empty where that is unknown.
        credible: whether the clock was not disturbed; empty where nothing is known of it.
        same_work: at the length of each range, whether it does the very work of the reference, as a setting does that
            is exact for short texts: where it seems to be faster, the clock errs. Empty where nothing is known of it.
    """

    method: Method
    setting: Setting
    exact: Setting
    agree: Bools
    correct: Bools | None
    ms: Sequence[float]
    share: Sequence[float]
    slowest: Sequence[float] = ()
    credible: Sequence[bool] = ()
    same_work: Sequence[bool] = ()

    def does_same_work(self, place: int) -> bool:
        """Whether it is known to do the very work of the reference in the range at a place."""
        return bool(self.same_work) and self.same_work[place]

    def is_credible(self, place: int) -> bool:
        """Whether its time in the range at a place may be relied on."""
        return not self.credible or self.credible[place]

    @property
    def is_exact(self) -> bool:
        """Whether every knob has its exact value; an answer of another precision may differ all the same."""
        return self.setting == self.exact


@dataclass(frozen=True, slots=True)
class Point:
    """What a candidate is worth for one range of lengths.

    Attributes:
        candidate: its place among all.
        ms: time of one text.
        share: the same as a share of the reference's.
        slowest: upper end of the share's interval.
        agreement: with the reference.
        accuracy: None without labels.
        frontier: whether no other is as good and faster: in accuracy where there are labels, else in agreement.
    """

    candidate: int
    ms: float
    share: float
    slowest: float
    agreement: Proportion
    accuracy: Proportion | None
    frontier: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What is recommended for one range of lengths.

    Attributes:
        candidate: its place; 0, the reference itself, where nothing faster is sure enough.
        agreement: on the texts that did not choose; None of the reference.
        nearest: where the reference is recommended, the first candidate that was tried and did not keep the agreement;
            None where none was faster.
        nearest_agreement: of that one.
        texts_needed: how many texts the range would need to show the agreement, where it has fewer; else 0.
    """

    candidate: int
    agreement: Proportion | None = None
    nearest: int | None = None
    nearest_agreement: Proportion | None = None
    texts_needed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One range of lengths.

    Attributes:
        range: which.
        points: one for each candidate, in their order.
        choice: what to take.
        attention_share: of the exact model's modelled time at the range's median length; None where the reference is
            not softmax attention.
    """

    range: Range
    points: list[Point] = field(default_factory=list)
    choice: Choice = field(default_factory=lambda: Choice(0))
    attention_share: float | None = None


def judge(
    candidates: Sequence[Candidate],
    ranges: Sequence[Range],
    *,
    min_agreement: float,
    confidence: float,
    attention_share: Callable[[int], float | None] = lambda _: None,
) -> list[Verdict]:
    """What every candidate is worth in each range, and which to take.

    Args:
        candidates: the reference first.
        ranges: of lengths.
        min_agreement: what a choice must keep.
        confidence: of intervals and bounds.
        attention_share: by tokens; see `Verdict`.
    """
    return [
        Verdict(
            each,
            _points(candidates, place, each, confidence),
            _choice(candidates, place, each, min_agreement, confidence),
            attention_share(each.median),
        )
        for place, each in enumerate(ranges)
    ]


def _points(candidates: Sequence[Candidate], place: int, each: Range, confidence: float) -> list[Point]:
    def share(right: Bools) -> Proportion:
        return proportion(int(right[each.places].sum()), len(each.places), confidence)

    agreement = [share(one.agree) for one in candidates]
    accuracy = [None if one.correct is None else share(one.correct) for one in candidates]
    quality = [(of or other).value for of, other in zip(accuracy, agreement, strict=True)]
    rivals = _rivals(candidates, place)
    best = undominated([candidates[index].share[place] for index in rivals], [quality[index] for index in rivals])
    frontier = {rivals[each] for each in best}
    return [
        Point(
            index,
            one.ms[place],
            one.share[place],
            (one.slowest or one.share)[place],
            agreement[index],
            accuracy[index],
            index in frontier,
        )
        for index, one in enumerate(candidates)
    ]


def _rivals(candidates: Sequence[Candidate], place: int) -> list[int]:
    """The reference, and what does other work than it in a range, in a time that can be relied on."""
    others = enumerate(candidates)
    return [0, *(at for at, one in others if at and one.is_credible(place) and not one.does_same_work(place))]


def _is_faster(candidate: Candidate, place: int) -> bool:
    """Whether it is worth having, and no accident of the clock."""
    slowest = (candidate.slowest or candidate.share)[place]
    return candidate.share[place] <= 1 / FASTER and slowest < 1


def _choice(
    candidates: Sequence[Candidate], place: int, each: Range, min_agreement: float, confidence: float
) -> Choice:
    lots = np.random.default_rng(SEED).permutation(each.places)
    choosing = round(CHOOSING_SHARE * len(lots))
    if not choosing or choosing == len(lots):
        return Choice(0, texts_needed=texts_needed(min_agreement, confidence, SEVERAL))
    rivals = [index for index in _rivals(candidates, place) if not index or _is_faster(candidates[index], place)]
    quality = [float(candidates[index].agree[lots[:choosing]].mean()) for index in rivals]
    order = [rivals[each] for each in undominated([candidates[index].share[place] for index in rivals], quality)]
    deciding = lots[choosing:]
    shown = [proportion(int(candidates[index].agree[deciding].sum()), len(deciding), confidence) for index in order]
    reached = reaching([1.0, *(each.bound for each in shown[1:])], min_agreement) - 1
    needed = (
        texts_needed(min_agreement, confidence, SEVERAL)
        if len(deciding) < fewest_texts(min_agreement, confidence)
        else 0
    )
    if reached:
        return Choice(order[reached], shown[reached])
    if len(order) == 1:
        return Choice(0, texts_needed=needed)
    return Choice(0, nearest=order[1], nearest_agreement=shown[1], texts_needed=needed)
