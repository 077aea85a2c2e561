"""What `inspect` says that goals win: by the clock, with an interval, at every agreement that the texts can show."""

import io

from calibrations import calibration, parsed
from rich.console import Console

from attenuator.calibration import Calibration
from attenuator.commands.calibrated import measured_gains, show_calibration

EXACT, CHEAP = {"keep": 1.0}, {"keep": 0.5}


def timed(agreeing: int, texts: int) -> Calibration:
    """Two settings, the second 1.25 times as fast at 16 tokens and modelled at 64."""
    speeds = [
        {"knobs": EXACT, "seconds": [0.01, 0.05], "gain": [[1.0, 1.0], [1.0, 1.0]]},
        {"knobs": CHEAP, "seconds": [0.008, 0.02], "gain": [[1.2, 1.3], [2.5, 2.5]]},
    ]
    latency = [{"device": "cpu", "threads": 1, "tokens": [16, 64], "batch_share": [1.0, 1.0], "speeds": speeds}]
    settings = [(EXACT, [texts, texts]), (CHEAP, [agreeing, agreeing])]
    return parsed(calibration("0" * 64, [30, 100], settings, texts, latency=latency))


def test_a_gain_is_measured_and_has_an_interval() -> None:
    first, second = measured_gains(timed(5000, 5000))
    assert first == (
        "For texts of 1 to 30 tokens min_agreement 0.999 takes keep 0.5: 1.25x [1.20, 1.30] as fast as exact, "
        "timed at 16 tokens."
    )
    assert "2.50x modelled as fast as exact, timed at 64 tokens" in second
    assert measured_gains(timed(0, 5000))[0].endswith("no cheaper setting is sure to keep an agreement of 0.7.")


def test_the_table_has_the_agreements_that_the_texts_can_show() -> None:
    for texts, has in ((5000, True), (500, False)):
        console = Console(file=io.StringIO(), width=200)
        show_calibration(console, timed(texts, texts))
        output = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("0.999" in output) == has
        assert "0.5 (1.25x)" in output
        assert "its measured speed-up" in output
