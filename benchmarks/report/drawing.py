"""What all plots share."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation

STYLES = ("-", "--", ":", "-.")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:grey")
# What a colour becomes on a dark page, by which it is told as `prefers-color-scheme`.
DARK = {
    "#ffffff": "#1b1d22",
    "#000000": "#ecebe7",
    "#595959": "#a9a6a0",
    "#7f7f7f": "#9b9b9b",
    "#cccccc": "#4a4d55",
    "#1f77b4": "#6aaee0",
    "#ff7f0e": "#ffa550",
    "#2ca02c": "#6cc46c",
    "#d62728": "#ff7b7b",
    "#9467bd": "#b99ade",
    "#8c564b": "#c49a8f",
    "#e377c2": "#f0a3d8",
}
TOO_FINE = re.compile(r"\d+\.\d{2,}")
LINES = re.compile(r'<path d="(M[^"QCz]*)" style="([^"]*)"/>')
TICK = re.compile(r'<path id="([^"]*)" d="M0 0L([\d.-]+) ([\d.-]+)" style="[^"]*"/>')
POINT = re.compile(r"([ML])([\d.-]+) ([\d.-]+)")
USE = re.compile(r'<use xlink:href="#([^"]*)" x="([^"]*)" y="([^"]*)" style="([^"]*)"/>')


def save(figure: Figure, path: Path) -> None:
    """Lays a figure out and writes it; powers are written as numbers."""
    for axes in figure.axes:
        axes.minorticks_off()
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
                axis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.tight_layout()
    write(figure, path)


def write(figure: Figure, path: Path) -> None:
    """Writes a figure whose layout is settled; equal results give equal files."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    path.write_text(compact(written.getvalue()), encoding="utf-8")


def rounded(number: re.Match[str]) -> str:
    """A coordinate to a tenth of a point."""
    return f"{float(number[0]):.1f}".removesuffix(".0")


def compact(svg: str) -> str:
    """The same picture in a fraction of the characters: a tenth of a point is fine enough, and a style stands once."""
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<!DOCTYPE[^>]*>", "", svg, flags=re.S)
    svg = re.sub(r' (?:d|x|y|width|height|transform)="[^"]*"', lambda place: TOO_FINE.sub(rounded, place[0]), svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: 'DejaVu Sans', sans-serif", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    svg = re.sub(r"\n(?=[LMQCz\"])", "", svg)
    svg = re.sub(r"(?<=[LMQC]) ", "", without_bare_groups(svg))
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    # Grid lines lie within the axes.
    svg = re.sub(r'(<path d="M[^LC]*L[^LC]*") clip-path="[^"]*"(?= style="[^"]*stroke-opacity)', r"\1", svg)
    svg = joined(dots(svg))
    svg = re.sub(r' d="(M[^"QCz]*)"', lambda path: f' d="{relative(path[1])}"', svg)
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href", "href")
    ids = {name: f"i{n}" for n, name in enumerate(re.findall(r' id="([^"]*)"', svg))}
    svg = re.sub(r'( id="|href="#|url\(#)([^")]*)', lambda place: place[1] + ids[place[2]], svg)
    names = {style: f"s{n}" for n, style in enumerate(dict.fromkeys(re.findall(r'style="([^"]*)"', svg)))}
    svg = re.sub(r'style="([^"]*)"', lambda style: f'class="{names[style[1]]}"', svg)
    sheet = "".join(f".{name}{{{style}}}\n" for style, name in names.items())
    return svg.replace("</style>", f"\n{sheet}{dark_sheet(names)}</style>", 1)


def dots(svg: str) -> str:
    """Round markers that follow each other, each a `<use>`, as one path of points with round ends."""
    shapes = dict(re.findall(r'<path id="([^"]*)" d="(M0 [^"]*C[^"]*)"', svg))
    lines: list[str] = []
    for line in svg.split("\n"):
        use = USE.fullmatch(line)
        if use is None or use[1] not in shapes:
            lines.append(line)
            continue
        colour = re.search(r"stroke: (#\w+)", use[4])
        width = 2 * float(shapes[use[1]].split("C")[0].removeprefix("M0 ")) + 1
        style = (
            f"fill: none; stroke: {colour[1] if colour else '#000000'}; stroke-width: {width:g}; stroke-linecap: round"
        )
        point, end = f"M{use[2]} {use[3]}L{use[2]} {use[3]}", f'" style="{style}"/>'
        if lines[-1].startswith('<path d="') and lines[-1].endswith(end):
            lines[-1] = lines[-1].removesuffix(end) + point + end
        else:
            lines.append(f'<path d="{point}{end}')
    shown = "\n".join(lines)
    return re.sub(rf'<defs>\n<path id="(?:{"|".join(map(re.escape, shapes))})"[^>]*/>\n</defs>\n', "", shown)


def joined(svg: str) -> str:
    """Ticks as lines of their own, and lines of one style between which nothing but texts stands as one path."""
    ticks = {name: (dx, dy) for name, dx, dy in TICK.findall(svg)}
    lines: list[str] = []
    places: dict[str, int] = {}
    for line in svg.split("\n"):
        use, tick = USE.fullmatch(line), TICK.fullmatch(line)
        if use and use[1] in ticks:
            x, y, dx, dy = (float(each) for each in (use[2], use[3], *ticks[use[1]]))
            line = f'<path d="M{x:.1f} {y:.1f}L{x + dx:.1f} {y + dy:.1f}" style="{use[4]}"/>'
        path = LINES.fullmatch(line)
        if path and path[2] in places:
            place = places[path[2]]
            lines[place] = lines[place].replace('" style', f'{path[1]}" style', 1)
        elif not tick:
            if not path and not re.match("<(text|tspan|g|/text|/g|defs|/defs)", line):
                places.clear()
            if path:
                places[path[2]] = len(lines)
            lines.append(line)
    return "\n".join(lines).replace("<defs>\n</defs>\n", "")


def relative(path: str) -> str:
    """A path of straight lines, each point told from the one before: fewer digits, and in tenths without an error."""
    told, last = [], (0, 0)
    for command, *place in POINT.findall(path):
        x, y = (round(10 * float(each)) for each in place)
        right, down = (x - last[0]) / 10, (y - last[1]) / 10
        line = f"h{right:g}" if not down else f"v{down:g}" if not right else f"l{right:g} {down:g}"
        told.append(line if command == "L" else f"m{right:g} {down:g}")
        last = x, y
    text = "".join(told)
    return re.sub(r" (?=-)", "", text)


def without_bare_groups(svg: str) -> str:
    """Takes away groups without content, and the tags of those that say nothing of theirs; each tag has its line."""
    kept: list[str] = []
    groups: list[bool] = []  # those that are open, and whether they say something
    for line in re.sub(r"\n<g[^>]*/>", "", svg).split("\n"):
        if line.startswith("<g"):
            groups.append(line != "<g>")
        if line == "</g>" and not groups.pop() or line == "<g>":
            continue
        kept.append(line)
    return "\n".join(kept)


def dark_sheet(names: Mapping[str, str]) -> str:
    """The colours on a dark page, of texts first: theirs is not stated.

    Args:
        names: the class by its style.
    """
    rows = [f"text{{fill: {DARK['#000000']}}}"]
    for style, name in names.items():
        colours = re.findall(r"((?:fill|stroke)): (#[0-9a-f]{6})", style)
        changed = [f"{part}: {DARK[colour]}" for part, colour in colours if colour in DARK]
        rows += [f".{name}{{{'; '.join(changed)}}}"] if changed else []
    return "@media (prefers-color-scheme: dark){\n" + "\n".join(rows) + "\n}\n"


def log_axes(axes: Axes, lengths: Sequence[int], ratio: str) -> None:
    """Tokens to the right, a ratio upwards, both logarithmic."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128) if axes.get_ylim()[0] <= t <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("tokens of one sequence")
    axes.set_ylabel(ratio)
    axes.grid(alpha=0.3)
