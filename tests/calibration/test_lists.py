"""The part `lists` of `calibration.json`: which figure a request is promised."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attenuator.calibration.lists import ListCalibration, fewest_from, most_within
from attenuator.calibration.proportions import proportion
from attenuator.commands.calibrate.ordering import in_two_steps
from attenuator.runtime.scores import ranked

SHARES = [0, 0.02, 0.04, 0.06, 0.07, 0.1, 0.15, 0.2, 0.29, 0.3, 0.5, 0.57, 0.75, 1]
KNOBS = {"keep": 0.5}


def lists(**changes: Any) -> ListCalibration:
    """A calibration whose proportions say by their counts which top and which share they are of."""
    kept = [[proportion(100 * top + share, 1000, 0.975) for share in range(len(SHARES))] for top in range(3)]
    row = {"knobs": KNOBS, "same_top": kept, "overlap": [1.0] * len(SHARES)}
    fields = {"data": "lists.jsonl", "data_sha256": "0" * 64, "lists": 1000, "documents": 50, "tops": [1, 3, 8]}
    return ListCalibration.model_validate(fields | {"shares": SHARES, "settings": [row]} | changes)


@pytest.mark.parametrize("documents", [1, 2, 3, 7, 10, 50, 99, 100, 256, 1000])
def test_a_request_scores_as_many_again_as_its_figure_was_measured_with(documents: int) -> None:
    length = max(documents, 50)
    for share in SHARES:
        assert most_within(share, documents) == Fraction(str(share)) * documents // 1
        assert fewest_from(share, documents) == -(-Fraction(str(share)) * documents // 1)
    for rescored in range(documents):
        kept = lists().same_top(KNOBS, rescored, documents, 1)
        assert kept is not None
        share = SHARES[kept.successes]
        assert most_within(share, length) <= rescored
        larger = [each for each in SHARES if each > share]
        assert not larger or Fraction(rescored, length) < Fraction(str(larger[0])), "the next share promises more"
    whole = lists().same_top(KNOBS, documents, documents, 1)
    assert whole is not None
    assert SHARES[whole.successes] == 1


def share_of(rescored: int, documents: int) -> int:
    """Place of the share whose figure is promised."""
    kept = lists().same_top(KNOBS, rescored, documents, 1)
    assert kept is not None
    return kept.successes


@pytest.mark.parametrize("documents", [1, 7, 49, 50, 51, 1000])
def test_figures_change_at_the_counts_alone(documents: int) -> None:
    shares = [share_of(count, documents) for count in range(documents + 1)]
    changes = [count for count, share in enumerate(shares) if not count or share != shares[count - 1]]
    assert lists().counts(documents) == changes


@pytest.mark.parametrize("documents", [10, 20, 35, 50, 100])
@pytest.mark.parametrize("top", [1, 3, 8])
def test_lists_of_other_lengths_keep_their_top_as_often_as_those_that_were_measured(documents: int, top: int) -> None:
    """First scores that are the exact ones with noise; in short lists, the same share would keep the top less often."""
    draw, lists_drawn = np.random.default_rng(documents + top), 200

    def kept(length: int, rescored: int) -> float:
        same = 0
        for exact, noise in draw.normal(size=(lists_drawn, 2, length)):
            order = in_two_steps([*(exact + 0.2 * noise)], [*exact], rescored)
            same += order[:top] == ranked([*exact])[:top]
        return same / lists_drawn

    for share in (0.1, 0.2, 0.3, 0.5):
        measured = kept(50, most_within(share, 50))
        place = SHARES.index(share)
        count = next(each for each in lists().counts(documents) if share_of(each, documents) >= place)
        assert kept(documents, count) >= measured - 0.1


@pytest.mark.parametrize(
    ("top_n", "documents", "place"), [(1, 50, 0), (2, 50, 1), (3, 50, 1), (4, 50, 2), (8, 50, 2), (20, 8, 2), (9, 3, 1)]
)
def test_the_next_larger_top_stands_for_those_between(top_n: int, documents: int, place: int) -> None:
    kept = lists().same_top(KNOBS, 0, documents, top_n)
    assert kept is not None
    assert kept.successes == 100 * place


def test_what_was_not_measured_has_no_figure() -> None:
    assert lists().same_top(KNOBS, 5, 50, 9) is None
    assert lists().same_top({"keep": 0.25}, 5, 50, 1) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shares": [0, 1]}, "one value for each of 2 shares"),
        ({"shares": [0.1, 1]}, "must begin at 0 and end at 1"),
        ({"tops": [1, 3]}, "one same_top for each of 2 tops"),
        ({"tops": [3, 1, 8]}, "must rise"),
        ({"reference": "BASE"}, "reference"),
        ({"lists": 999}, "must count 999 lists"),
        ({"documents": 10**400}, "documents"),
        ({"settings": [lists().settings[0].model_dump()] * 2}, "must have each setting once"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        lists(**changes)
