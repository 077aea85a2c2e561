"""Orders in two steps, and what they are judged by."""

import numpy as np
import pytest

from attenuator.calibration.grid import VALUES
from attenuator.calibration.proportions import fewest_texts
from attenuator.commands.calibrate.ordering import in_two_steps, ndcg, reciprocal_rank, together
from attenuator.commands.calibrate.settings import CalibrateSettings


@pytest.mark.parametrize(
    ("knobs", "agreement", "lists"), [(1, 0.95, 117), (1, 0.99, 597), (2, 0.95, 142), (2, 0.99, 724)]
)
def test_so_many_lists_as_the_page_says_are_enough(knobs: int, agreement: float, lists: int) -> None:
    settings = (VALUES[knobs] + 2) ** knobs  # the exact value and the default besides
    assert fewest_texts(agreement, together(CalibrateSettings.model_fields["confidence"].default, settings)) == lists


def test_ties_go_to_the_earlier_document() -> None:
    first, second = [2.0, 1.0, 2.0, 2.0, 0.5], [1.0, 9.0, 1.0, 3.0, 9.0]
    assert in_two_steps(first, second, 0) == [0, 2, 3, 1, 4]
    assert in_two_steps(first, second, 2) == [0, 2, 3, 1, 4]
    assert in_two_steps(first, second, 3) == [3, 0, 2, 1, 4]
    assert in_two_steps(first, second, 5) == [1, 4, 3, 0, 2]


def test_measures_by_hand() -> None:
    order = [3, 0, 2, 1]
    assert ndcg(order, frozenset({0})) == pytest.approx(1 / np.log2(3))
    assert ndcg(order, frozenset({3, 1})) == pytest.approx((1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3)))
    assert (ndcg(order, frozenset()), reciprocal_rank(order, frozenset())) == (0, 0)
    assert reciprocal_rank(order, frozenset({2, 1})) == pytest.approx(1 / 3)
    assert reciprocal_rank(list(range(12)), frozenset({10})) == 0
