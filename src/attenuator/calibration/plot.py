"""Draws the frontiers of a calibration: agreement over predicted time, one line for each bucket of lengths."""

import math
from collections.abc import Iterator
from html import escape

from attenuator.calibration.schema import Bucket, Calibration, Setting, shown

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
TIME_TICKS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
AGREEMENT_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
MOST_STEPS = 8
LEGEND_LINE = 16


def frontier_svg(calibration: Calibration, title: str) -> str:
    """The plot as SVG; equal calibrations give equal files.

    Args:
        calibration: with predicted times.
        title: stands above the plot.
    """
    axes = _Axes(calibration)
    heading = escape(f"{title}: {', '.join(calibration.settings[0].knobs)}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{heading}</text>',
        *axes.grid(),
    ]
    for index, bucket in enumerate(calibration.buckets):
        colour = COLOURS[index % len(COLOURS)]
        parts += _line(axes, calibration.frontier(index), index, colour, last=index == len(calibration.buckets) - 1)
        height = HEIGHT - BOTTOM - 12 - LEGEND_LINE * (len(calibration.buckets) - 1 - index)
        parts.append(f'<text x="{WIDTH - RIGHT - 8}" y="{height}" fill="{colour}" text-anchor="end">')
        parts.append(f"{_lengths(bucket)}, {bucket.texts} texts</text>")
    return "\n".join([*parts, "</svg>", ""])


def _lengths(bucket: Bucket) -> str:
    return f"{bucket.low} to {bucket.high} tokens"


class _Axes:
    """Predicted time to the right, logarithmic; agreement upwards, from the lowest interval to 1."""

    def __init__(self, calibration: Calibration) -> None:
        points = [
            (setting.time[index], setting.agreement[index].low)
            for index in range(len(calibration.buckets))
            for setting in calibration.frontier(index)
        ]
        lowest = min(low for _, low in points)
        self.step = next((step for step in AGREEMENT_STEPS if (1 - lowest) / step <= MOST_STEPS), AGREEMENT_STEPS[-1])
        self.steps = max(1, math.ceil((1 - lowest) / self.step))
        self.fastest = max([tick for tick in TIME_TICKS if tick <= min(time for time, _ in points)] or [TIME_TICKS[0]])
        self.fastest = min(self.fastest, TIME_TICKS[-2])

    def x(self, time: float) -> float:
        """Place of a share of the exact setting's time."""
        share = math.log(max(time, self.fastest) / self.fastest) / math.log(1 / self.fastest)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, agreement: float) -> float:
        """Place of an agreement."""
        share = (1 - agreement) / (self.steps * self.step)
        return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self) -> Iterator[str]:
        """Lines with their values, and what the axes are."""
        for tick in (tick for tick in TIME_TICKS if tick >= self.fastest):
            x = self.x(tick)
            yield f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
            yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        for count in range(self.steps + 1):
            agreement = 1 - count * self.step
            y = self.y(agreement)
            yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{round(agreement, 4):g}</text>'
        middle, half = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 18}" text-anchor="middle">predicted time, exact setting = 1</text>'
        yield (
            f'<text x="18" y="{half}" text-anchor="middle" transform="rotate(-90 18 {half})">'
            "agreement with the exact setting</text>"
        )


def _line(axes: _Axes, settings: list[Setting], bucket: int, colour: str, *, last: bool) -> Iterator[str]:
    """One bucket: its settings with their intervals.

    What a setting is stands in the tooltip; of the last bucket, the knobs' values stand beside the points as well.
    """
    places = [(axes.x(each.time[bucket]), axes.y(each.agreement[bucket].value)) for each in settings]
    path = "L".join(f"{x} {y}" for x, y in places)
    yield f'<path d="M{path}" fill="none" stroke="{colour}"/>'
    for (x, y), setting in zip(places, settings, strict=True):
        row = setting.agreement[bucket]
        yield f'<path d="M{x} {axes.y(row.low)}V{axes.y(row.high)}" stroke="{colour}" stroke-opacity="0.5"/>'
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{escape(shown(setting.knobs))}: '
        yield f"{row.value:.4f}, {row.low:.4f} to {row.high:.4f}</title></circle>"
        if last:
            values = ", ".join(f"{value:g}" for value in setting.knobs.values())
            yield f'<text x="{x - 6}" y="{y - 6}" font-size="9" text-anchor="end">{values}</text>'
