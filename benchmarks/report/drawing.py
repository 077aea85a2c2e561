"""What all plots share."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:grey")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure; equal results give equal files."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


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
