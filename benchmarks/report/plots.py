"""Draws the result files: speed-up over length, MCA's projection, brownouts, servers, the knob in pictures.

    python -m benchmarks.report.plots

Writes SVG files beside the results. Needs matplotlib (extra `bench`).
"""

import argparse
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks.report import brownout_plot, cuda_plots, knob_plots
from benchmarks.report.drawing import COLOURS, log_axes, save
from benchmarks.report.results_files import (
    RESULTS,
    Result,
    crossovers,
    label,
    length_of,
    load,
    names,
    select,
)


def speed_up(result: Result, path: Path) -> None:
    """The operator over exact attention, per m, with the quartiles and the crossover."""
    figure, axes = pyplot.subplots(figsize=(9, 5.5))
    every: set[int] = set()
    rows = select(result["attention"], threads=1)
    starts = crossovers(result)
    for colour, name in zip(COLOURS, names(rows, "speed_up", "yoso "), strict=False):
        points = [(row["n"], row["speed_up"][name]) for row in rows if name in row["speed_up"]]
        lengths, ratios = [n for n, _ in points], [ratio["median"] for _, ratio in points]
        every |= set(lengths)
        cross = starts[name][0]
        called = label(name) + (f" (from {cross:.0f})" if cross else "")
        axes.plot(lengths, ratios, color=colour, marker="o", markersize=3, label=called)
        low, high = [ratio["low"] for _, ratio in points], [ratio["high"] for _, ratio in points]
        axes.fill_between(lengths, low, high, color=colour, alpha=0.12, linewidth=0)
    log_axes(axes, sorted(every), "times faster than ONNX Runtime's best exact attention")
    axes.legend(fontsize=7, title="num_hashes (faster from this many tokens)", title_fontsize=8)
    save(figure, path)


def projection(result: Result, path: Path) -> None:
    """MCA's projection over the share of multiply-adds it spends."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for colour, row in zip(COLOURS, result.get("projection", []), strict=False):
        # Where next to nothing is left to compute, noise may take all of it away.
        settings = [setting for setting in row["settings"] if setting["projection"]["low"] > 0]
        shares = [1 / setting["value_flops"] for setting in settings]
        ratios = [setting["projection"]["median"] for setting in settings]
        line = f"{length_of(row)}, scores' deviation {row['sharpness']:g}"
        axes.plot(shares, ratios, marker="o", color=colour, markersize=3, label=line)
    axes.plot([1, 64], [1, 64], ":", color="black", linewidth=0.8, label="as the multiply-adds")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("multiply-adds of the dense projection over those spent")
    axes.set_ylabel("times faster than ONNX Runtime's prepacked MatMul")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    save(figure, path)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    folder = parser.parse_args(arguments).output
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attenuator", "svg.fonttype": "none"}
    operators = load("operators")
    if not operators:
        print(f"{RESULTS} lacks operators-*.json: run `make bench`", file=sys.stderr)
        return 1
    speed_up(operators, folder / "speed_up.svg")
    projection(operators, folder / "projection.svg")
    brownout_plot.draw(folder)
    cuda_plots.draw(folder)
    knob_plots.draw(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
