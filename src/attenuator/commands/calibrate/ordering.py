"""Orders of lists in two steps: which first steps are worth keeping, and how often the first documents stay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attenuator.calibration.frontier import undominated
from attenuator.calibration.lists import ListCalibration, ListSetting, most_within
from attenuator.calibration.proportions import proportion
from attenuator.commands.calibrate.list_file import Lists
from attenuator.runtime.scores import ranked

TOPS = (1, 3, 5, 10)
SHARES = (0, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1)
DEPTH = 10  # of nDCG, of the reciprocal rank and of the overlap
DIGITS = 6

Scores = Sequence[float]
Counts = npt.NDArray[np.int64]
Means = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Scores of all pairs, the lists one after the other.

    Attributes:
        first: of the first step, at each setting of the grid.
        second: of the model that scores the best again.
        exact: of the one whose order counts; that of the second step unless rounding lies between them.
    """

    first: Sequence[Scores]
    second: Scores
    exact: Scores


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """What one setting was worth as a first step, summed over lists.

    Attributes:
        same: lists that kept their first documents, int64 `[tops, shares]`.
        ndcg: nDCG, float64 `[shares]`; 0 without relevant documents, as are the reciprocal ranks.
        mrr: reciprocal ranks, likewise.
        overlap: shares of the exact first ones that are among the first ones, likewise.
    """

    same: Counts
    ndcg: Means = field(default_factory=lambda: np.zeros(len(SHARES)))
    mrr: Means = field(default_factory=lambda: np.zeros(len(SHARES)))
    overlap: Means = field(default_factory=lambda: np.zeros(len(SHARES)))


def in_two_steps(first: Scores, second: Scores, rescored: int) -> list[int]:
    """Places of a list's documents, best first, ties as the service breaks them: the earlier document first.

    Args:
        first: score of each document in the first step.
        second: score of each document in the second step.
        rescored: how many of the best of the first step the second one scores.

    Returns:
        Those that were scored again by their second score, then the others by their first.
    """
    again = set(ranked(first)[:rescored])
    return ranked([second[place] if place in again else score for place, score in enumerate(first)], again)


def tops_of(lists: Lists) -> list[int]:
    """Numbers of first documents to compare: none is beyond the longest list."""
    return sorted({min(top, max(lists.sizes)) for top in TOPS})


def worth_of(first: Scores, lists: Lists, steps: Steps, exact_orders: Sequence[Sequence[int]]) -> Worth:
    """What one setting was worth, from its scores of all pairs and the exact order of each list."""
    tops = tops_of(lists)
    worth = Worth(np.zeros((len(tops), len(SHARES)), dtype=np.int64))
    for place, (span, exact) in enumerate(zip(lists.spans(), exact_orders, strict=True)):
        relevant = lists.relevant[place] if lists.relevant else frozenset()
        orders: dict[int, list[int]] = {}
        for column, share in enumerate(SHARES):
            rescored = most_within(share, len(exact))
            if rescored not in orders:
                orders[rescored] = in_two_steps(first[span], steps.second[span], rescored)
            order = orders[rescored]
            worth.same[:, column] += [order[:top] == exact[:top] for top in tops]
            worth.overlap[column] += len({*order[:DEPTH]} & {*exact[:DEPTH]}) / len(exact[:DEPTH])
            worth.ndcg[column] += ndcg(order, relevant)
            worth.mrr[column] += reciprocal_rank(order, relevant)
    return worth


def ndcg(order: Sequence[int], relevant: frozenset[int]) -> float:
    """Normalised discounted cumulative gain of the first `DEPTH` documents, with gains of 0 and 1.

    Järvelin and Kekäläinen (2002). A list without a relevant document has 0.
    """
    discounts = [1 / math.log2(rank + 2) for rank in range(DEPTH)]
    ideal = sum(discounts[: len(relevant)])
    gained = sum(discount for discount, place in zip(discounts, order, strict=False) if place in relevant)
    return gained / ideal if relevant else 0.0


def reciprocal_rank(order: Sequence[int], relevant: frozenset[int]) -> float:
    """One over the rank of the first relevant document; 0 where none is among the first `DEPTH`."""
    return next((1 / rank for rank, place in enumerate(order[:DEPTH], start=1) if place in relevant), 0.0)


def calibrated_lists(
    name: str,
    sha256: str,
    lists: Lists,
    steps: Steps,
    settings: Sequence[Mapping[str, float]],
    times: Sequence[float],
    *,
    confidence: float,
    defaults: Mapping[str, float],
) -> ListCalibration:
    """The part `lists` of a calibration: of the exact setting, of the defaults, and of those that no other beats.

    A setting is beaten by one that is faster and keeps the first documents of more lists, over all tops and shares.

    Args:
        name: of the file of lists, without its folder.
        sha256: of its content.
        lists: that were run.
        steps: their scores.
        settings: of the grid, the exact one first.
        times: predicted, of each setting; only ratios count.
        confidence: of each bound, at which those of all settings of the grid hold together.
        defaults: the bundle's default of each knob, a setting of the grid.
    """
    exact_orders = [ranked(steps.exact[span]) for span in lists.spans()]
    worths = [worth_of(first, lists, steps, exact_orders) for first in steps.first]
    kept = undominated(times, [float(worth.same.sum()) for worth in worths])
    places = sorted({*kept, [dict(each) for each in settings].index(dict(defaults))})
    return ListCalibration(
        data=name,
        data_sha256=sha256,
        lists=len(lists.sizes),
        documents=int(np.median(lists.sizes)),
        reference=lists.larger.model.manifest.revision if lists.larger else None,
        tops=tops_of(lists),
        shares=list(SHARES),
        settings=[_setting(settings[place], worths[place], lists, confidence) for place in places],
    )


def together(confidence: float, settings: int) -> float:
    """The confidence of one setting's bounds with which those of all hold together (Bonferroni)."""
    return 1 - (1 - confidence) / settings


def _setting(knobs: Mapping[str, float], worth: Worth, lists: Lists, confidence: float) -> ListSetting:
    """A setting as the file has it."""
    count = len(lists.sizes)

    def means(sums: Means) -> list[float]:
        return [float(f"{min(1.0, value / count):.{DIGITS}g}") for value in sums]

    return ListSetting(
        knobs=dict(knobs),
        same_top=[[proportion(int(same), count, confidence) for same in row] for row in worth.same],
        ndcg=means(worth.ndcg) if lists.relevant else [],
        mrr=means(worth.mrr) if lists.relevant else [],
        overlap=means(worth.overlap),
    )


def at_confidence(lists: ListCalibration, confidence: float, settings: int) -> ListCalibration:
    """The same counts at another confidence.

    Args:
        lists: of an earlier calibration.
        confidence: at which the bounds of all settings hold together.
        settings: of the grid that they were chosen from.
    """
    each = together(confidence, settings)
    rows = [
        setting.model_copy(
            update={"same_top": [[proportion(p.successes, p.trials, each) for p in row] for row in setting.same_top]}
        )
        for setting in lists.settings
    ]
    return lists.model_copy(update={"settings": rows})
