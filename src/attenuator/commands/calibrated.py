"""Prints a calibration for people: which setting each goal would get, by length."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from attenuator.calibration.goals import cheapest
from attenuator.calibration.schema import Calibration, Setting

GOALS = (0.7, 0.8, 0.9, 0.95, 0.99)


def shown(knobs: Mapping[str, float]) -> str:
    """A setting in words: every knob with its value."""
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items())


def show_calibration(console: Console, calibration: Calibration) -> None:
    """Prints what goals choose.

    Args:
        console: where to; it must take texts as they are, without markup.
        calibration: of a bundle.
    """
    exact = calibration.settings[0]
    knobs = ", ".join(exact.knobs)
    console.print()
    console.print(f"Calibration: the cheapest {knobs} for a min_agreement, and its modelled speed-up", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tokens", "texts", *(f"{goal:g}" for goal in GOALS)):
        table.add_column(name, justify="right")
    for index, bucket in enumerate(calibration.buckets):
        chosen = [cheapest(calibration, bucket.high, goal) for goal in GOALS]
        cells = ["exact" if setting is exact else _cell(setting, index) for setting in chosen]
        table.add_row(f"{bucket.low} to {bucket.high}", str(bucket.texts), *cells)
    console.print(table)
    accuracy = ", ".join(f"{row.value:.3f}" for row in exact.accuracy)
    console.print(
        f"Measured on {calibration.texts} texts of {calibration.data}, at {100 * calibration.confidence:g} % confidence"
        + (f"; accuracy of the exact setting by length: {accuracy}" if accuracy else "")
        + "".join(f"; timed on {row.device}, threads: {row.threads}" for row in calibration.latency)
        + ".",
        style="dim",
    )


def _cell(setting: Setting, bucket: int) -> str:
    """The values of a setting with its speed-up, where that was predicted."""
    values = ", ".join(f"{value:g}" for value in setting.knobs.values())
    return f"{values} ({1 / setting.time[bucket]:.2f}x)" if setting.time else values
