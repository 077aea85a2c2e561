"""Draws the result files: speed-up over length, whole models, error beside time, MCA's projection.

    python -m benchmarks.report.plots

Writes SVG files beside the results. Needs matplotlib (extra `bench`).
"""

import argparse
import math
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks.report import brownout_plot, cuda_plots, knob_plots, server_plot, tables
from benchmarks.report.drawing import COLOURS, log_axes, save
from benchmarks.report.results_files import (
    RESULTS,
    Result,
    crossovers,
    label,
    length_of,
    load,
    names,
    paper_ratios,
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


def models(result: Result, path: Path) -> None:
    """Whole models over themselves with exact attention, the paper's own ratios beside its shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in result["models"]))
    figure, panels = pyplot.subplots(1, len(shapes), figsize=(6 * len(shapes), 4.5), squeeze=False)
    for axes, shape in zip(panels[0], shapes, strict=True):
        rows = select(result["models"], shape=shape, threads=1)
        lengths = [row["n"] for row in rows]
        colours: dict[str, str] = {}
        for colour, name in zip(COLOURS, names(rows, "over_softmax", ""), strict=False):
            colours[name] = colour
            ratios = [tables.median(row, "over_softmax", name) for row in rows]
            axes.plot(lengths, [r or math.nan for r in ratios], color=colour, marker="o", markersize=3,
                      label=label(name))  # fmt: skip
        for name, own in (paper_ratios(lengths) if shape == "paper" else {}).items():
            values = [r or math.nan for r in own]
            axes.plot(lengths, values, ":", color=colours.get(name), label=f"{label(name)}, the paper's own (GPU)")
        log_axes(axes, lengths, "times faster than with exact softmax attention")
        axes.set_title(tables.SHAPE_NAMES[shape], fontsize=8)
        axes.legend(fontsize=7)
    save(figure, path)


def frontier(result: Result, path: Path) -> None:
    """Error over m, time over m, and one over the other."""
    figure, (errors, costs, both) = pyplot.subplots(1, 3, figsize=(15, 4.5))
    for colour, row in zip(COLOURS, result.get("frontier", []), strict=False):
        hashes = [setting["num_hashes"] for setting in row["settings"]]
        error = [setting["error"] for setting in row["settings"]]
        time = {name: item["cpu_us"]["median"] / 1000 for name, item in row["contenders"].items()}
        cost = [time[f"yoso m={m}"] for m in hashes]
        line = {"marker": "o", "markersize": 3, "color": colour, "label": f"{row['n']} tokens"}
        errors.plot(hashes, error, **line)
        costs.plot(hashes, cost, **line)
        both.plot(cost, error, **line)
        costs.axhline(time["mha"], color=colour, linewidth=0.8)
        both.axvline(time["mha"], color=colour, linewidth=0.8)
        for m, x, y in zip(hashes, cost, error, strict=True):
            both.annotate(str(m), (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    for axes, (x, y) in zip(
        (errors, costs, both),
        (("num_hashes", "relative error"), ("num_hashes", "ms"), ("ms (number: num_hashes)", "relative error")),
        strict=True,
    ):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
        title = "straight line: exact softmax of ONNX Runtime" if axes is not errors else None
        axes.legend(fontsize=7, title=title, title_fontsize=7)
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
    operators, whole = load("operators"), load("models")
    if not operators or not whole:
        print(f"{RESULTS} lacks result files: run operators.py and models.py", file=sys.stderr)
        return 1
    speed_up(operators, folder / "speed_up.svg")
    models(whole, folder / "models.svg")
    frontier(operators, folder / "frontier.svg")
    projection(operators, folder / "projection.svg")
    brownout_plot.draw(folder)
    server_plot.draw(folder)
    cuda_plots.draw(folder)
    knob_plots.draw(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
