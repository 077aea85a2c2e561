"""How well a cheap first step orders lists for a reranker: the part `lists` of `calibration.json`.

A list is ranked in two steps: all documents at a setting, then the best of them again at the exact values. The top of
the answer is the exact one where no document of the exact top was left behind by the first step. So one run of every
list at a setting tells how often that holds for every number of documents that is scored again. That number is
kept as a share of the list, because in a longer list more documents stand before those of the top. In a shorter one
the top is a larger part, which the same share keeps less often: there the number counts, as of the median list.

A goal takes the cheapest of many settings, so their bounds have to hold together: each is at a confidence of
1 - (1 - the file's) / (settings of the grid), after Bonferroni. Shares need no such correction, for at one setting a
larger share keeps every list that a smaller one keeps, unless rounding changes the exact order itself.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from attenuator.bundle import Sha256
from attenuator.calibration.records import MAX_SETTINGS, Finite, Line, Positive, Proportion, Record

MAX_TOPS, MAX_SHARES = 16, 64
MAX_DOCUMENTS = 2**31 - 1  # no number overflows in a product with a share


def fewest_from(share: float, documents: int) -> int:
    """The fewest documents of a list that are at least a share of it.

    Args:
        share: 0 to 1.
        documents: of the list, at least one.
    """
    count = max(0, math.ceil(share * documents) - 1)  # the product may be rounded either way: the quotient decides
    while count / documents < share:
        count += 1
    return count


def most_within(share: float, documents: int) -> int:
    """The most documents of a list that are at most a share of it: how many were scored again to measure that share.

    A request that scores n of as many again is promised the figure of a share of n / documents at most, see
    `ListCalibration.same_top`: at least as many as were measured.

    Args:
        share: 0 to 1.
        documents: of the list, at least one.
    """
    count = math.floor(share * documents) + 1  # as in `fewest_from`
    while count / documents > share:
        count -= 1
    return count


class ListSetting(Record):
    """One setting of the first step, and what it was worth.

    Attributes:
        knobs: value by knob name; all knobs of the bundle.
        same_top: share of lists whose first documents are those of the exact order, in that order, `[tops][shares]`;
            lists shorter than a top count with their whole length. Intervals and bounds of all settings hold together.
        ndcg: mean nDCG@10 after both steps, one a share; empty where the data has no `relevant`.
        mrr: mean reciprocal rank within the first 10, likewise.
        overlap: mean share of the exact first 10 that are among the first 10, one a share.
    """

    knobs: dict[str, Finite]
    same_top: list[list[Proportion]]
    ndcg: list[Annotated[float, Field(ge=0, le=1)]] = []
    mrr: list[Annotated[float, Field(ge=0, le=1)]] = []
    overlap: list[Annotated[float, Field(ge=0, le=1)]]


class ListCalibration(Record):
    """What first steps were worth on lists.

    Attributes:
        data: name of the file of lists, without its folder.
        data_sha256: of its content.
        lists: how many were measured.
        documents: of the median list.
        reference: revision of the larger model that scores again and whose order counts; None where both are this
            bundle's own checkpoint's, see `Calibration.reference`.
        tops: numbers of first documents that were compared, ascending.
        shares: shares of a list that the second step scores again, ascending; the first is 0, no second step, and the
            last 1.
        settings: the exact one first.
    """

    data: Line
    data_sha256: Sha256
    lists: Positive
    documents: Annotated[int, Field(ge=1, le=MAX_DOCUMENTS)]
    reference: Sha256 | None = None
    tops: Annotated[list[Positive], Field(min_length=1, max_length=MAX_TOPS)]
    shares: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=MAX_SHARES)]
    settings: Annotated[list[ListSetting], Field(min_length=1, max_length=MAX_SETTINGS)]

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Checks what one field says about another."""
        for values in (self.tops, self.shares):
            if any(after <= before for before, after in pairwise(values)):
                raise ValueError("tops and shares must rise")
        if (self.shares[0], self.shares[-1]) != (0, 1):
            raise ValueError("shares must begin at 0 and end at 1")
        count = len(self.shares)
        for row in self.settings:
            if len(row.same_top) != len(self.tops):
                raise ValueError(f"a setting must have one same_top for each of {len(self.tops)} tops")
            if any(each.trials != self.lists for kept in row.same_top for each in kept):
                raise ValueError(f"same_top must count {self.lists} lists, as many as were measured")
            lengths = {len(row.overlap), *(len(each) for each in row.same_top)}
            if lengths != {count} or not {len(row.ndcg), len(row.mrr)} <= {0, count}:
                raise ValueError(f"a setting must have one value for each of {count} shares")
        if len({tuple(sorted(row.knobs.items())) for row in self.settings}) < len(self.settings):
            raise ValueError("settings must have each setting once")
        return self

    def counts(self, documents: int) -> list[int]:
        """How many documents of a list to score again at least for the figure of each share, ascending.

        Args:
            documents: of the list, at least one.
        """
        length = max(documents, self.documents)
        return sorted({min(documents, fewest_from(share, length)) for share in self.shares})

    def same_top(self, knobs: Mapping[str, float], rescored: int, documents: int, top_n: int) -> Proportion | None:
        """How often the first `top_n` of two steps are those of the exact order.

        Args:
            knobs: of the first step.
            rescored: documents that the second step scores again; 0 without one.
            documents: of the list, at least one.
            top_n: how many of the best are asked for; more than there are documents are all of them.

        Returns:
            The figure at the next smaller share and the next larger top that were measured; None where nothing was. In
            a list that is shorter than the median one, so many documents are the share that they are of the median.
        """
        place = bisect_left(self.tops, min(top_n, documents))
        if place == len(self.tops):
            return None
        part = 1.0 if rescored >= documents else rescored / max(documents, self.documents)
        share = bisect_right(self.shares, part) - 1
        return next((row.same_top[place][share] for row in self.settings if row.knobs == knobs), None)
