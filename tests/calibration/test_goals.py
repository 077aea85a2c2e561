"""The walk from the exact setting to the cheapest that keeps a goal."""

import pytest

from attenuator.calibration import Calibration, cheapest, default_setting, reaching
from attenuator.calibration.goals import falling, fewest_estimated
from attenuator.calibration.proportions import proportion
from attenuator.errors import GoalOutOfReach

TEXTS = 10_000


def calibration(
    *agreements: list[int],
    ends: list[int],
    frontiers: list[list[int]] | None = None,
    texts: int = TEXTS,
    **fields: object,
) -> Calibration:
    """Settings `knob` 0 (exact), 1, 2, .. with so many of the texts that agree, for each bucket."""
    rows = [[texts] * len(ends), *agreements]
    starts = [1, *(end + 1 for end in ends)]
    return Calibration.model_validate(
        {
            "format_version": 1,
            "revision": "0" * 64,
            "confidence": 0.95,
            "data": "texts.jsonl",
            "data_sha256": "0" * 64,
            "texts": texts,
            "buckets": [
                {"low": low, "high": high, "texts": texts, "frontier": frontiers[index] if frontiers else []}
                for index, (low, high) in enumerate(zip(starts, ends, strict=False))
            ],
            "settings": [
                {"knobs": {"knob": float(place)}, "agreement": [proportion(count, texts, 0.95) for count in counts]}
                for place, counts in enumerate(rows)
            ],
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("goal", "chosen"),
    [(0.0, 4), (0.5, 4), (0.90, 3), (0.97, 2), (0.99, 1), (0.9985, 1), (0.999, 0), (1.0, 0)],
)
def test_the_cheapest_setting_that_is_sure_to_keep_the_goal(goal: float, chosen: int) -> None:
    rows = calibration([9992], [9800], [9100], [8000], ends=[512])
    assert cheapest(rows, 100, goal).knobs == {"knob": chosen}


def test_a_share_that_only_touches_the_goal_is_not_sure() -> None:
    assert cheapest(calibration([9900], ends=[512]), 100, 0.99).knobs == {"knob": 0}


def test_the_walk_does_not_jump_over_a_setting_that_fails() -> None:
    """A cheaper one behind it may pass by luck alone."""
    assert cheapest(calibration([9990], [9000], [9990], ends=[512]), 100, 0.99).knobs == {"knob": 1}


def test_every_length_has_its_own_order() -> None:
    rows = calibration([9990, 10], [10, 9990], ends=[64, 512], frontiers=[[0, 1], [0, 2, 1]])
    assert cheapest(rows, 64, 0.99).knobs == {"knob": 1}
    assert cheapest(rows, 65, 0.99).knobs == {"knob": 2}
    assert cheapest(rows, 100_000, 0.99).knobs == {"knob": 2}


def test_where_the_exact_setting_is_the_fastest_every_goal_gets_it() -> None:
    rows = calibration([9990], ends=[512], frontiers=[[0]])
    assert cheapest(rows, 100, 0.0).knobs == {"knob": 0}


def test_the_exact_setting_of_a_rounded_bundle_is_tested_as_well() -> None:
    """Its answers are not the reference's: a goal above what it keeps is no setting's."""
    rows = calibration([9100], ends=[512]).model_copy(update={"reference": "1" * 64})
    exact = rows.settings[0].model_copy(update={"agreement": [proportion(9700, TEXTS, 0.95)]})
    rows = rows.model_copy(update={"settings": [exact, *rows.settings[1:]]})
    assert [cheapest(rows, 100, goal).knobs["knob"] for goal in (0.9, 0.95, 0.96)] == [1, 0, 0]
    with pytest.raises(GoalOutOfReach, match="min_agreement 0.99 is above .* 9700 of 10000 answers .* at least 0.967"):
        cheapest(rows, 100, 0.99)


def test_a_bound_that_equals_the_goal_keeps_it() -> None:
    assert reaching([1.0, 0.9, 0.8], 0.9) == 2
    assert reaching([1.0, 0.9, 0.8], 0.8) == 3


@pytest.mark.parametrize(("goal", "chosen"), [(0.8, 4), (0.81, 3), (0.9, 3), (0.98, 2), (0.9993, 0), (1.0, 0)])
def test_requests_that_set_nothing_get_the_last_setting_that_is_estimated_to_keep_the_default(
    goal: float, chosen: int
) -> None:
    rows = calibration([9992], [9800], [9100], [8000], ends=[512], default_agreement=goal)
    assert default_setting(rows, 100).knobs == {"knob": chosen}


@pytest.mark.parametrize(
    ("texts", "agree", "chosen"),
    [(24, 24, 0), (48, 48, 0), (49, 49, 1), (1000, 990, 1), (1000, 989, 0), (10_000, 9900, 1)],
)
def test_few_texts_choose_no_default_that_they_do_not_show(texts: int, agree: int, chosen: int) -> None:
    """The share is compared, of which 24 of 24 would be enough, but no more than so many texts can show."""
    rows = calibration([agree], ends=[512], texts=texts, default_agreement=0.99)
    assert default_setting(rows, 100).knobs == {"knob": chosen}
    assert cheapest(rows, 100, 0.99).knobs == {"knob": 0}


@pytest.mark.parametrize(
    ("goal", "texts"),
    [(0.3, 1), (0.5, 1), (0.75, 1), (0.9, 4), (0.95, 9), (0.99, 49), (0.999, 499), (1 - 2**-20, 2**19 - 1)],
)
def test_with_fewer_texts_no_estimate_reaches_the_goal(goal: float, texts: int) -> None:
    assert fewest_estimated(goal) == texts


def test_the_default_does_not_jump_over_a_setting_that_fails_either() -> None:
    rows = calibration([9990], [9000], [9990], ends=[512], default_agreement=0.99)
    assert default_setting(rows, 100).knobs == {"knob": 1}


def test_a_chance_fall_is_averaged_with_what_follows() -> None:
    rows = calibration([9990], [9895], [9915], [9800], ends=[512], default_agreement=0.99)
    assert default_setting(rows, 100).knobs == {"knob": 3}
    assert falling([1.0, 0.9895, 0.9915, 0.98]) == pytest.approx([1.0, 0.9905, 0.9905, 0.98])
    assert falling([0.5, 0.75, 1.0]) == [0.75] * 3
    assert falling([]) == []


def test_the_default_of_every_length_follows_its_own_order() -> None:
    rows = calibration([9990, 10], [10, 9990], ends=[64, 512], frontiers=[[0, 1], [0, 2, 1]], default_agreement=0.99)
    assert [default_setting(rows, tokens).knobs["knob"] for tokens in (64, 65, 100_000)] == [1, 2, 2]


def test_where_rounding_alone_is_below_the_default_the_exact_setting_is_the_default() -> None:
    rows = calibration([9900], ends=[512], reference="1" * 64, default_agreement=0.99)
    exact = rows.settings[0].model_copy(update={"agreement": [proportion(9700, TEXTS, 0.95)]})
    rows = rows.model_copy(update={"settings": [exact, *rows.settings[1:]]})
    assert default_setting(rows, 100).knobs == {"knob": 0}
