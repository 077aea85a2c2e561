"""What all plots share."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:grey")
TOO_FINE = re.compile(r"\d+\.\d{2,}")


def save(figure: Figure, path: Path) -> None:
    """Lays a figure out and writes it."""
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
    names = {style: f"s{n}" for n, style in enumerate(dict.fromkeys(re.findall(r'style="([^"]*)"', svg)))}
    svg = re.sub(r'style="([^"]*)"', lambda style: f'class="{names[style[1]]}"', svg)
    sheet = "".join(f".{name}{{{style}}}\n" for style, name in names.items())
    return svg.replace("</style>", f"\n{sheet}</style>", 1)


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
