"""Draws what a server does at twice its capacity, with brownout and without, from the results of `brownout.py`."""

from pathlib import Path

from matplotlib import pyplot

from benchmarks.report.drawing import COLOURS, save
from benchmarks.report.results_files import Result, load_all

RUNS = {"without": COLOURS[3], "with": COLOURS[0]}


def draw(folder: Path) -> None:
    """Draws the committed results, where there are any."""
    results = load_all("brownout")
    if results:
        brownout(results, folder / "brownout.svg")


def brownout(results: list[Result], path: Path) -> None:
    """Latency, refusals and the knob over time; one column for each bundle."""
    figure, columns = pyplot.subplots(3, len(results), figsize=(5 * len(results), 8), sharex="col", squeeze=False)
    for (latency, refused, knob), result in zip(columns.T, results, strict=True):
        [name] = result["floor"]
        for run, colour in RUNS.items():
            rows = result[run]["by_second"]
            seconds = [row["second"] for row in rows]
            label = f"{run} brownout"
            latency.plot(seconds, [row["median_s"] for row in rows], color=colour, label=f"{label}, median")
            latency.plot(seconds, [row["longest_s"] for row in rows], ":", color=colour, label=f"{label}, longest")
            refused.plot(seconds, [100 * row["refused"] / row["requests"] for row in rows], color=colour, label=label)
            knob.plot(seconds, [row["knob"] for row in rows], color=colour, label=label)
        latency.axhline(result["target_ms"] / 1000, color="black", linewidth=0.8, label="target")
        latency.set_yscale("log")
        latency.set_ylabel("seconds until the answer")
        latency.set_title(
            f"{result['bundle']}, {result['tokens']['median']:.0f} tokens: {result['load']:g} times the exact capacity "
            f"of {result['capacity_per_s']:.1f} a second",
            fontsize=8,
        )
        refused.set_ylabel("refused, %")
        refused.set_ylim(-2, 102)
        knob.set_ylabel(f"{name}, median ({result['exact_knobs'][name]:g} is exact)")
        knob.set_xlabel("second in which requests were to leave")
        for axes in (latency, refused, knob):
            axes.axvspan(0, result["settle_s"], color="black", alpha=0.05)
            axes.grid(alpha=0.3)
        latency.legend(fontsize=7)
    save(figure, path)
