"""Draws the result files: speed-up over length, whole models, error beside time, MCA's projection.

    python benchmarks/plots.py

Writes SVG files beside the results. Needs matplotlib (extra `bench`).
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import tables
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")


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


def crossover(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Length at which the ratio passes 1 for good, interpolated over logarithms."""
    for i in range(len(lengths) - 1, 0, -1):
        if ratios[i - 1] < 1 <= ratios[i]:
            share = math.log(1 / ratios[i - 1]) / math.log(ratios[i] / ratios[i - 1])
            return math.exp(math.log(lengths[i - 1]) + share * math.log(lengths[i] / lengths[i - 1]))
    return None


def speed_up(results: dict[str, Any], path: Path) -> None:
    """The operator over exact attention, per m and instruction set, with the quartiles and the crossover."""
    figure, axes = pyplot.subplots(figsize=(8, 5))
    every: set[int] = set()
    for style, (isa, result) in zip(STYLES, results.items(), strict=False):
        rows = [row for row in tables.one_thread(result["attention"]) if len(row["speed_up"]) > 1]
        for colour, name in zip(COLOURS, tables.names(rows, "speed_up", "yoso"), strict=False):
            points = [(row["n"], row["speed_up"][name]) for row in rows if name in row["speed_up"]]
            lengths, ratios = [n for n, _ in points], [ratio["median"] for _, ratio in points]
            every |= set(lengths)
            cross = crossover(lengths, ratios)
            label = f"{name[5:]}, {tables.ISA_NAMES[isa]}" + (f" (from {cross:.0f})" if cross else "")
            axes.plot(lengths, ratios, style, color=colour, marker="o", markersize=3, label=label)
            low, high = [ratio["low"] for _, ratio in points], [ratio["high"] for _, ratio in points]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    log_axes(axes, sorted(every), "times faster than ONNX Runtime's best exact attention")
    axes.legend(fontsize=8, title="num_hashes (faster from this many tokens)", title_fontsize=8)
    save(figure, path)


def models(results: dict[str, Any], path: Path) -> None:
    """Whole models over themselves with exact attention, the paper's own ratios beside its shape."""
    first = next(iter(results.values()))
    shapes = list(dict.fromkeys(row["shape"] for row in first["models"]))
    figure, panels = pyplot.subplots(1, len(shapes), figsize=(6 * len(shapes), 4.5), squeeze=False)
    for axes, shape in zip(panels[0], shapes, strict=True):
        rows = tables.one_thread(first["models"], shape=shape)
        lengths = [row["n"] for row in rows]
        for colour, name in zip(COLOURS, tables.names(rows, "over_softmax", ""), strict=False):
            ratios = [row["over_softmax"][name]["median"] for row in rows]
            axes.plot(lengths, ratios, color=colour, marker="o", markersize=3, label=name.removeprefix("yoso "))
        if shape == "paper":
            paper = tables.paper_times()
            for colour, name in zip(COLOURS[1:], ("yoso m=16", "yoso m=32"), strict=False):
                ratios = [paper["softmax"][n] / paper[name][n] for n in lengths]
                axes.plot(lengths, ratios, ":", color=colour, label=f"{name[5:]}, the paper's own (GPU)")
        log_axes(axes, lengths, "times faster than with exact softmax attention")
        axes.set_title(tables.SHAPE_NAMES[shape], fontsize=8)
        axes.legend(fontsize=8)
    save(figure, path)


def frontier(result: dict[str, Any], path: Path) -> None:
    """Error over m, time over m, and one over the other."""
    figure, (errors, costs, both) = pyplot.subplots(1, 3, figsize=(14, 4.5))
    for colour, row in zip(COLOURS, result["frontier"], strict=False):
        hashes = [setting["num_hashes"] for setting in row["settings"]]
        error = [setting["error"] for setting in row["settings"]]
        time = {name: item["cpu_us"]["median"] / 1000 for name, item in row["contenders"].items()}
        cost = [time[f"yoso m={m}"] for m in hashes]
        label = f"{row['n']} tokens"
        errors.plot(hashes, error, marker="o", color=colour, label=label)
        costs.plot(hashes, cost, marker="o", color=colour, label=label)
        costs.axhline(time["mha"], color=colour, linestyle="--", linewidth=0.8)
        both.plot(cost, error, marker="o", color=colour, label=label)
        both.axvline(time["mha"], color=colour, linestyle="--", linewidth=0.8)
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
        axes.legend(fontsize=8, title="dashed: exact softmax of ONNX Runtime" if axes is not errors else None)
    save(figure, path)


def projection(result: dict[str, Any], path: Path) -> None:
    """MCA's projection over the share of multiply-adds it spends."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for colour, row in zip(COLOURS, result["projection"], strict=False):
        # Where next to nothing is left to compute, noise may take more than all of it away.
        settings = [setting for setting in row["settings"] if setting["projection"]["min"] > 0]
        shares = [1 / setting["value_flops"] for setting in settings]
        ratios = [setting["projection"]["median"] for setting in settings]
        label = f"{row['n']} tokens, scores' deviation {row['sharpness']:g}"
        axes.plot(shares, ratios, "o-", color=colour, markersize=3, label=label)
    axes.plot([1, 64], [1, 64], ":", color="black", linewidth=0.8, label="as the multiply-adds")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("multiply-adds of the dense projection over those spent")
    axes.set_ylabel("times faster than ONNX Runtime's prepacked MatMul")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save(figure, path)


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=tables.RESULTS, help="folder")
    folder = parser.parse_args().output
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "attenuator", "svg.fonttype": "none"}
    operators, whole = tables.load("operators"), tables.load("models")
    if not operators or not whole:
        print(f"{tables.RESULTS} lacks result files: run operators.py and models.py", file=sys.stderr)
        return 1
    best = next(iter(operators.values()))
    speed_up(operators, folder / "speed_up.svg")
    models(whole, folder / "models.svg")
    frontier(best, folder / "frontier.svg")
    projection(best, folder / "projection.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
