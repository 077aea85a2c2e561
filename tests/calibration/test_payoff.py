"""A knob that cannot pay is said in one sentence."""

from collections.abc import Sequence

import pytest
from calibrations import calibration, parsed
from rich.console import Console

from attenuator.calibration.payoff import cannot_pay
from attenuator.commands.calibrated import show_calibration


def measured(counts: Sequence[tuple[float, Sequence[int]]]) -> list[tuple[dict[str, float], Sequence[int]]]:
    return [({"keep": share}, numbers) for share, numbers in counts]


LOSING = [(1.0, [1000, 1000]), (0.9, [1000, 999]), (0.5, [985, 989]), (0.1, [700, 600])]


def test_it_names_what_was_measured_and_what_to_do() -> None:
    sentence = cannot_pay(parsed(calibration("0" * 64, [40, 90], measured(LOSING))), "keep")
    assert sentence == (
        "On these 2000 texts no keep that was measured, up to 0.5, keeps 99 % of the exact answers: teach the "
        "checkpoint with `attenuator adapt --keep`, unless it is taught already, or use int8."
    )


TWO_KNOBS = [({"keep": share, "alpha": 0.5}, [980, 900]) for share in (0.7, 0.5)]


def test_a_knob_that_is_measured_beside_another_loses_answers_too() -> None:
    """Calibrations leave out a setting where one with another knob beside it agrees as often."""
    rows = [({"keep": 1.0, "alpha": 0.0}, [1000, 1000]), ({"keep": 1.0, "alpha": 0.5}, [999, 999]), *TWO_KNOBS]
    sentence = cannot_pay(parsed(calibration("0" * 64, [40, 90], rows)), "keep")
    assert sentence is not None
    assert sentence.startswith("On these 2000 texts no keep that was measured, up to 0.7, keeps 99 % of")


def test_rounding_is_not_blamed_on_the_knob_and_is_not_advised_again() -> None:
    """Where the exact setting itself keeps too few answers the knob cannot keep more."""
    counts = [(1.0, [1000, 980]), (0.5, [970, 979])]
    rounded = calibration("0" * 64, [40, 90], measured(counts), reference="1" * 64)
    sentence = cannot_pay(parsed(rounded), "keep")
    assert sentence is not None
    assert sentence.startswith("On these 1000 texts no keep")
    assert sentence.endswith("unless it is taught already.")
    counts[0] = (1.0, [980, 980])
    rounded = calibration("0" * 64, [40, 90], measured(counts), reference="1" * 64)
    assert cannot_pay(parsed(rounded), "keep") is None


def test_the_goal_is_that_of_requests_which_set_nothing() -> None:
    rows = measured([(1.0, [1000, 1000]), (0.5, [965, 970])])
    assert cannot_pay(parsed(calibration("0" * 64, [40, 90], rows, default_agreement=0.97)), "keep") is None
    sentence = cannot_pay(parsed(calibration("0" * 64, [40, 90], rows, default_agreement=0.98)), "keep")
    assert sentence is not None
    assert "keeps 98 % of" in sentence


@pytest.mark.parametrize(
    "rows",
    [
        measured([*LOSING[:2], (0.5, [985, 995]), LOSING[3]]),
        measured(LOSING[:2]),
        [({"num_hashes": 0.0}, [1000, 1000]), ({"num_hashes": 8.0}, [600, 600])],
        [({"keep": 1.0, "alpha": 0.0}, [1000, 1000]), ({"keep": 0.5, "alpha": 0.2}, [600, 995]), *TWO_KNOBS],
    ],
    ids=["a share keeps them at one length", "no small share measured", "another knob", "with another knob beside it"],
)
def test_it_says_nothing_elsewhere(rows: list[tuple[dict[str, float], Sequence[int]]]) -> None:
    assert cannot_pay(parsed(calibration("0" * 64, [40, 90], rows)), "keep") is None


def test_a_calibration_that_is_shown_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_calibration(
        Console(markup=False, highlight=False, width=300), parsed(calibration("0" * 64, [9, 90], measured(LOSING)))
    )
    assert "On these 2000 texts no keep that was measured, up to 0.5, keeps 99 % of" in capsys.readouterr().out
