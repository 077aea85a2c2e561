"""Prints a calibration for people: which setting each goal would get, by length."""

from rich.console import Console
from rich.table import Table

from attenuator.calibration.goals import cheapest, default_setting
from attenuator.calibration.payoff import cannot_pay
from attenuator.calibration.proportions import fewest_texts
from attenuator.calibration.schema import Calibration, Latency, Setting, shown
from attenuator.commands.calibrated_lists import show_lists
from attenuator.commands.capacity import timed_place, times_of
from attenuator.ops import TOKENS

GOALS = (0.7, 0.8, 0.9, 0.95, 0.99, 0.999)


def show_calibration(console: Console, calibration: Calibration) -> None:
    """Prints what goals choose.

    Args:
        console: where to; it must take texts as they are, without markup.
        calibration: of a bundle.
    """
    exact, times = calibration.settings[0], times_of(calibration)
    knobs = ", ".join(exact.knobs)
    how = "modelled" if times is None else "measured"
    console.print()
    console.print(f"Calibration: the cheapest {knobs} for a min_agreement, and its {how} speed-up", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bold")
    most = max(row.trials for row in exact.agreement)
    goals = [goal for goal in GOALS if fewest_texts(goal, calibration.confidence) <= most]
    timed_at = [] if times is None else ["timed at"]
    for name in ("tokens", "texts", *timed_at, *(f"{goal:g}" for goal in goals)):
        table.add_column(name, justify="right")
    for index, bucket in enumerate(calibration.buckets):
        cells = [_cell(calibration, index, goal, times) for goal in goals]
        at = [] if times is None else [str(times.tokens[timed_place(times, bucket)])]
        table.add_row(f"{bucket.low} to {bucket.high}", str(bucket.texts), *at, *cells)
    console.print(table)
    if calibration.default_agreement is not None:
        console.print(usual(calibration))
    if calibration.reference is not None:
        kept = ", ".join(f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]" for row in exact.agreement)
        console.print(
            f"Agreement is with the exact answers of the fp32 bundle {calibration.reference[:12]}. The exact setting "
            f"of this bundle, which is rounded, keeps by length: {kept}; goals above their bounds are refused ('-').",
            style="dim",
        )
    if advice := cannot_pay(calibration, TOKENS.name):
        console.print(advice, style="bold")
    accuracy = ", ".join(f"{row.value:.3f}" for row in exact.accuracy)
    console.print(
        f"Measured on {calibration.texts} texts of {calibration.data}, at {100 * calibration.confidence:g} % confidence"
        + (f"; accuracy of the exact setting by length: {accuracy}" if accuracy else "")
        + "".join(f"; timed on {row.device}, threads: {row.threads}" for row in calibration.latency)
        + ".",
        style="dim",
    )
    show_lists(console, calibration)


def usual(calibration: Calibration) -> str:
    """What requests that set nothing run at, by length, in a sentence; the calibration has a default agreement."""
    parts = []
    for index, bucket in enumerate(calibration.buckets):
        setting = default_setting(calibration, bucket.high)
        name = "exact" if setting is calibration.settings[0] else shown(setting.knobs)
        parts.append(f"{name} up to {bucket.high} tokens ({setting.agreement[index].value:.3f})")
    return (
        f"Requests that set nothing run at what is estimated to keep {calibration.default_agreement:g} (measured in "
        f"parentheses): {'; '.join(parts)}."
    )


def measured_gains(calibration: Calibration) -> list[str]:
    """What goals win by the clock, a sentence for each range of lengths; empty where nothing was timed."""
    times = times_of(calibration)
    sentences = []
    for index, bucket in enumerate(calibration.buckets if times else ()):
        assert times is not None
        most = calibration.bounds(index)[0]
        chosen = [(goal, cheapest(calibration, bucket.high, goal)) for goal in reversed(GOALS) if goal <= most]
        goal, setting = next((row for row in chosen if row[1] is not calibration.settings[0]), (None, None))
        texts = f"For texts of {bucket.low} to {bucket.high} tokens"
        if setting is None:
            sentences.append(f"{texts} no cheaper setting is sure to keep an agreement of {GOALS[0]:g}.")
            continue
        sentences.append(
            f"{texts} min_agreement {goal:g} takes {shown(setting.knobs)}: "
            f"{_speedup(setting, calibration, index, times)} as fast as exact, timed at "
            f"{times.tokens[timed_place(times, bucket)]} tokens."
        )
    return sentences


def _speedup(setting: Setting, calibration: Calibration, bucket: int, times: Latency | None) -> str:
    """How many times as fast as the exact setting, with its interval where it was measured; empty where unknown."""
    if times is not None:
        seconds = {frozenset(each.knobs.items()): each for each in times.speeds}
        own, exact = (seconds.get(frozenset(each.knobs.items())) for each in (setting, calibration.settings[0]))
        if own is not None and exact is not None:
            place = timed_place(times, calibration.buckets[bucket])
            low, high = own.gain[place] if own.gain else (0.0, 0.0)
            ends = f" [{low:.2f}, {high:.2f}]" if low < high else " modelled" if low else ""
            return f"{exact.seconds[place] / own.seconds[place]:.2f}x{ends}"
    return f"{1 / setting.time[bucket]:.2f}x modelled" if setting.time else ""


def _cell(calibration: Calibration, bucket: int, goal: float, times: Latency | None) -> str:
    """What a goal chooses, with its speed-up where that is known."""
    if goal > calibration.bounds(bucket)[0]:
        return "-"
    setting = cheapest(calibration, calibration.buckets[bucket].high, goal)
    if setting is calibration.settings[0]:
        return "exact"
    values = ", ".join(f"{value:g}" for value in setting.knobs.values())
    speedup, _, _ = _speedup(setting, calibration, bucket, times).partition(" ")  # its interval is in the sentences
    return f"{values} ({speedup})" if speedup else values
