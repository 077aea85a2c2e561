"""Draws a comparison: accuracy or agreement over time, one panel for each range of lengths, one colour a method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from attenuator.calibration.plot import AGREEMENT_STEPS, COLOURS, MOST_STEPS
from attenuator.calibration.records import Proportion
from attenuator.compare.judging import Candidate, Point, Verdict
from attenuator.compare.report import titled

WIDTH, PANEL = 860, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
HEADER = 40
TICKS = tuple(base * 10**power for power in range(-3, 3) for base in (1, 2, 5))
DASHES = ("", "5 3", "2 2", "7 2 2 2")  # once the colours are used up


def comparison_svg(verdicts: Sequence[Verdict], candidates: Sequence[Candidate], title: str) -> str:
    """The plot as SVG; equal comparisons give equal files.

    Args:
        verdicts: one for each range of lengths.
        candidates: the reference first.
        title: stands above the panels.
    """
    names = list(dict.fromkeys(candidate.method.name for candidate in candidates))
    height = HEADER + PANEL * len(verdicts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for row, verdict in enumerate(verdicts):
        parts.append(f'<g transform="translate(0 {HEADER + PANEL * row})">')
        parts += _panel(verdict, candidates, names)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _quality(point: Point) -> Proportion:
    return point.accuracy or point.agreement


class _Axes:
    """Time as a share of the exact model's to the right, logarithmic; accuracy or agreement upwards."""

    def __init__(self, points: Sequence[Point]) -> None:
        shares = [point.share for point in points]
        self._low, self._high = math.log(min(shares) / 1.05), math.log(max(shares) * 1.05)
        bottom = min(_quality(point).low for point in points)
        top = max(_quality(point).high for point in points)
        self.step = next((step for step in AGREEMENT_STEPS if (top - bottom) / step <= MOST_STEPS), AGREEMENT_STEPS[-1])
        self._first, self._last = math.floor(bottom / self.step), max(1, math.ceil(top / self.step))

    def x(self, share: float) -> float:
        part = (math.log(share) - self._low) / (self._high - self._low)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        part = (self._last - value / self.step) / max(1, self._last - self._first)
        return round(TOP + part * (PANEL - TOP - BOTTOM), 1)

    def grid(self, quality: str) -> Iterator[str]:
        for tick in (tick for tick in TICKS if self._low <= math.log(tick) <= self._high):
            x = self.x(tick)
            yield f'<path d="M{x} {TOP}V{PANEL - BOTTOM}" stroke="#ddd"/>'
            yield f'<text x="{x}" y="{PANEL - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        for count in range(self._first, self._last + 1):
            y = self.y(count * self.step)
            yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{round(count * self.step, 4):g}</text>'
        middle, half = (LEFT + WIDTH - RIGHT) / 2, (TOP + PANEL - BOTTOM) / 2
        yield f'<text x="{middle}" y="{PANEL - 14}" text-anchor="middle">time of one text, exact = 1</text>'
        yield (f'<text x="18" y="{half}" text-anchor="middle" transform="rotate(-90 18 {half})">{quality}</text>')


def _panel(verdict: Verdict, candidates: Sequence[Candidate], names: Sequence[str]) -> Iterator[str]:
    axes = _Axes(verdict.points)
    yield f'<text x="{LEFT}" y="22" font-size="13">{verdict.range.name}, {len(verdict.range.places)} texts</text>'
    quality = "accuracy" if verdict.points[0].accuracy else "agreement with the exact answers"
    yield from axes.grid(quality)
    frontier = sorted((point for point in verdict.points if point.frontier), key=lambda point: point.share)
    path = "L".join(f"{axes.x(point.share)} {axes.y(_quality(point).value)}" for point in frontier)
    yield f'<path d="M{path}" fill="none" stroke="#999" stroke-dasharray="4 3"/>'
    for point in verdict.points:
        yield from _mark(axes, point, candidates[point.candidate], names, point.candidate == verdict.choice.candidate)
    for row, name in enumerate(names):
        x, y = WIDTH - RIGHT + 16, TOP + 10 + 16 * row
        colour, dash = _style(name, names)
        yield f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"/>'
        yield f'<text x="{x + 24}" y="{y}">{escape(name)}</text>'


def _style(name: str, names: Sequence[str]) -> tuple[str, str]:
    place = names.index(name)
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def _mark(axes: _Axes, point: Point, candidate: Candidate, names: Sequence[str], chosen: bool) -> Iterator[str]:
    """A candidate with its interval: filled on the frontier, ringed where it is recommended."""
    colour, dash = _style(candidate.method.name, names)
    row = _quality(point)
    x, y = axes.x(point.share), axes.y(row.value)
    stroke = f'stroke="{colour}" stroke-dasharray="{dash}"'
    yield f'<path d="M{x} {axes.y(row.low)}V{axes.y(row.high)}" {stroke} stroke-opacity="0.4"/>'
    if chosen:
        yield f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="black"/>'
    fill = colour if point.frontier else "white"
    yield f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{colour}"><title>{escape(titled(candidate))}: '
    yield f"{row.value:.4f}, {row.low:.4f} to {row.high:.4f}, {1 / point.share:.2f} times as fast</title></circle>"
