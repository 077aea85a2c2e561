"""Draws what was measured on GPUs."""

from pathlib import Path

from matplotlib import pyplot

from benchmarks.report.cuda_tables import one_sequence, plot_name
from benchmarks.report.drawing import COLOURS, STYLES, log_axes, save
from benchmarks.report.results_files import Result, label, load_cuda, names, select


def draw(folder: Path) -> None:
    """Writes a plot for each card; none where none was measured."""
    for card, result in load_cuda("cuda_operators").items():
        speed_up(result, folder / plot_name(card))


def speed_up(result: Result, path: Path) -> None:
    """YOSO over the fastest exact attention, single sequences on the left, large batches on the right."""
    figure, panels = pyplot.subplots(1, 2, figsize=(13, 5))
    for axes, single in zip(panels, (True, False), strict=True):
        rows = [row for row in result["attention"] if one_sequence(row) == single]
        lengths = sorted({row["n"] for row in rows})
        for style, precision in zip(STYLES, dict.fromkeys(row["precision"] for row in rows), strict=False):
            chosen = select(rows, precision=precision)
            for colour, name in zip(COLOURS, names(chosen, "speed_up", "yoso"), strict=False):
                points = [(row["n"], row["speed_up"][name]["median"]) for row in chosen if name in row["speed_up"]]
                axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3,
                          label=f"{label(name)}, {precision}")  # fmt: skip
        if lengths:
            log_axes(axes, lengths, "times faster than the fastest exact attention")
            axes.legend(fontsize=7)
        axes.set_title("one sequence" if single else "65,536 tokens", fontsize=9)
    figure.suptitle(result["card"]["name"], fontsize=9)
    save(figure, path)
