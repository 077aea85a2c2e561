"""A knob that cannot pay is said in one sentence."""

from collections.abc import Sequence

import pytest
from calibrations import calibration, parsed
from rich.console import Console

from attenuator.calibration.payoff import cannot_pay
from attenuator.commands.calibrated import show_calibration


def measured(counts: Sequence[tuple[float, Sequence[int]]]) -> list[tuple[dict[str, float], Sequence[int]]]:
    return [({"keep": share}, numbers) for share, numbers in counts]


LOSING = [(1.0, [1000, 1000]), (0.9, [1000, 999]), (0.5, [985, 990]), (0.1, [700, 600])]


def test_it_names_what_was_measured_and_what_to_do() -> None:
    sentence = cannot_pay(parsed(calibration("0" * 64, [40, 90], measured(LOSING))), "keep")
    assert sentence == (
        "On these 2000 texts no keep below 0.9 keeps 99 % of the exact answers: teach the checkpoint with "
        "`attenuator adapt --keep`, unless it is taught already, or use int8."
    )


@pytest.mark.parametrize(
    "rows",
    [
        measured([*LOSING[:2], (0.5, [985, 995]), LOSING[3]]),
        measured(LOSING[:2]),
        [({"num_hashes": 0.0}, [1000, 1000]), ({"num_hashes": 8.0}, [600, 600])],
        [({"keep": 1.0, "alpha": 0.0}, [1000, 1000]), ({"keep": 0.5, "alpha": 0.2}, [600, 600])],
    ],
    ids=["a share keeps them in both lengths together", "no small share measured", "another knob", "two knobs at once"],
)
def test_it_says_nothing_elsewhere(rows: list[tuple[dict[str, float], Sequence[int]]]) -> None:
    assert cannot_pay(parsed(calibration("0" * 64, [40, 90], rows)), "keep") is None


def test_a_calibration_that_is_shown_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    show_calibration(
        Console(markup=False, highlight=False, width=300), parsed(calibration("0" * 64, [9, 90], measured(LOSING)))
    )
    assert "On these 2000 texts no keep below 0.9 keeps 99 % of the exact answers: teach" in capsys.readouterr().out
