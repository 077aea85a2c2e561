"""The report of a tuning as one HTML page, without anything from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from attenuator.calibration.records import Proportion
from attenuator.tune.result import Candidate, Point, Tuned, interval, sentences

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 24, 56
STEPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
MOST_STEPS = 8
LOWEST_SHOWN = 0.05  # below the goal: settings far from it would flatten the rest
STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d8d8d8; --dim: #666; --fp32: #1f6fb4;
  --int8: #c2571a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --line: #3a3d42; --dim: #a0a4aa;
  --fp32: #6cb2f0; --int8: #f0965c; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 800px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { white-space: pre-wrap; border: 1px solid var(--line); padding: .8rem; border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
div.wide { overflow-x: auto; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.chosen { font-weight: 600; } .dim { color: var(--dim); } svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; } .grid { stroke: var(--line); }
.fp32 { stroke: var(--fp32); fill: var(--fp32); } .int8 { stroke: var(--int8); fill: var(--int8); }
.curve { fill: none; stroke-width: 1.5; } .taught.curve { stroke-dasharray: 6 3; }
.ring { fill: none; stroke: var(--ink); stroke-width: 2; }
.goal { stroke: var(--dim); stroke-dasharray: 4 4; }
"""


def report_page(tuned: Tuned, output: str) -> str:
    """The whole page.

    Args:
        tuned: the result.
        output: the bundle's folder, as the user named it.
    """
    summary = escape("\n".join(sentences(tuned, output)))
    dashed = "Dashed is what was taught. " if any(each.taught for each in tuned.candidates) else ""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(tuned.name)}: speed and agreement</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(tuned.name)}: how much faster at which agreement</h1><pre>{summary}</pre>",
        "<h2>Time against agreement</h2>",
        *curve(tuned),
        f'<p class="dim">Agreement: share of {tuned.texts} texts, others than those that chose how tokens are left '
        "out, whose answer is the checkpoint's own in fp32, with 95 % intervals. Times: packed batches on one core of "
        f"{escape(tuned.machine)}, all settings in turns. {dashed}The ring is what requests that set nothing get.</p>",
        "<h2>Every setting</h2>",
        *table(tuned),
        f"<h2>Texts whose answer changes: {tuned.changed_of} of {tuned.texts}</h2>",
        *changed(tuned),
        "<h2>What was tried</h2><ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in tuned.tried),
        "</ul></body></html>",
    ]
    return "\n".join(parts) + "\n"


class Axes:
    """Times as fast to the right, agreement upwards."""

    def __init__(self, tuned: Tuned) -> None:
        points = [point for each in tuned.candidates for point in (*each.points, each.default)]
        self.fastest = max(2.0, 1.05 * max(point.gain for point in points))
        lowest = min(tuned.min_agreement, *(interval(point.agreement)[0] for point in points))
        lowest = max(lowest, tuned.min_agreement - LOWEST_SHOWN)
        self.step = next((step for step in STEPS if (1 - lowest) / step <= MOST_STEPS), STEPS[-1])
        self.lowest = 1 - self.step * -(-(1 - lowest) // self.step)

    def x(self, gain: float) -> float:
        """Place of a gain."""
        return round(LEFT + (min(gain, self.fastest) / self.fastest) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, agreement: float) -> float:
        """Place of an agreement; those below the axis lie on it."""
        share = (1 - max(agreement, self.lowest)) / (1 - self.lowest)
        return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)

    def grid(self) -> Iterator[str]:
        """Lines with their values, and what the axes are."""
        each = next(step for step in (0.5, 1, 2, 5, 10, 20, 50, 100) if self.fastest / step <= 10)
        for count in range(1, int(self.fastest / each) + 1):
            x = self.x(count * each)
            yield f'<path class="grid" d="M{x} {TOP}V{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{count * each:g}</text>'
        for count in range(round((1 - self.lowest) / self.step) + 1):
            agreement = 1 - count * self.step
            y = self.y(agreement)
            yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{agreement:.4g}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">times as fast as exact fp32</text>'
        yield f'<text x="{LEFT}" y="14">agreement</text>'


def curve(tuned: Tuned) -> Iterator[str]:
    """The plot as SVG."""
    axes = Axes(tuned)
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="agreement over speed">'
    yield from axes.grid()
    goal = axes.y(tuned.min_agreement)
    yield f'<path class="goal" d="M{LEFT} {goal}H{WIDTH - RIGHT}"/>'
    for each in tuned.candidates:
        kind = escape(each.precision)
        places = [(axes.x(point.gain), axes.y(point.agreement.value)) for point in each.points]
        yield f'<path class="curve {kind}{" taught" * each.taught}" d="M{"L".join(f"{x} {y}" for x, y in places)}"/>'
        for (x, y), point in zip(places, each.points, strict=True):
            low, high = map(axes.y, interval(point.agreement))
            yield f'<path class="{kind}" stroke-opacity="0.5" d="M{x} {low}V{high}"/>'
            title = f"<title>{escape(_title(each, point))}</title>"
            yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="3.5">{title}</circle>'
        x, y = places[0]
        if not (each.taught and kind == "fp32"):  # which is exact at the same place
            yield f'<text x="{x + 8}" y="{y - 7}">{"exact" if kind == "fp32" else kind}</text>'
    point = tuned.choice.default
    yield f'<circle class="ring" cx="{axes.x(point.gain)}" cy="{axes.y(point.agreement.value)}" r="9"/>'
    yield "</svg>"


def _title(each: Candidate, point: Point) -> str:
    return f"{each.name}, {_knobs(point)}: {point.gain:.2f} times, {_share(point.agreement)}"


def _share(row: Proportion) -> str:
    low, high = interval(row)
    return f"{row.value:.4f} ({low:.4f} to {high:.4f})"


def _knobs(point: Point) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in point.knobs.items())


def table(tuned: Tuned) -> Iterator[str]:
    """Every setting in numbers."""
    labelled = tuned.choice.default.accuracy is not None
    heads = ["texts a second", "times as fast", "agreement", *(["accuracy"] if labelled else [])]
    numbers = "".join(f'<th class="n">{head}</th>' for head in heads)
    yield f'<div class="wide"><table><tr><th>bundle</th><th>setting</th>{numbers}</tr>'
    for each in tuned.candidates:
        rows: Sequence[tuple[str, Point]] = [*((_knobs(point), point) for point in each.points), ("", each.default)]
        for setting, point in rows:
            default = point is each.default
            cells = [
                f"{tuned.exact_a_second * point.gain:,.1f}",
                f"{point.gain:.2f} ({point.low:.2f} to {point.high:.2f})",
                _share(point.agreement),
                *([f"{point.accuracy.value:.3f}"] if point.accuracy else []),
            ]
            kind = ' class="chosen"' if default and each is tuned.choice else ""
            named = f"default: {each.setting}" if default else setting
            yield f"<tr{kind}><td>{escape(each.name)}</td><td>{escape(named)}</td>"
            yield "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"
    yield "</table></div>"


def changed(tuned: Tuned) -> Iterator[str]:
    """Some of the texts whose answers change."""
    if not tuned.changed:
        yield "<p>None.</p>"
        return
    yield "<table><tr><th>text</th><th>exact</th><th>this bundle</th></tr>"
    for row in tuned.changed:
        answers = "".join(f"<td>{escape(label)} {score:.2f}</td>" for label, score in (row.exact, row.tuned))
        yield f"<tr><td>{escape(row.text)}</td>{answers}</tr>"
    yield "</table>"
    if len(tuned.changed) < tuned.changed_of:
        yield f'<p class="dim">The {len(tuned.changed)} that the exact answer was surest of.</p>'
