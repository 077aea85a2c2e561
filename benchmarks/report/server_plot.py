"""Draws goodput and latency of servers over the load, from the results of `server.py`."""

from pathlib import Path

from matplotlib import pyplot

from benchmarks.report.drawing import COLOURS, save
from benchmarks.report.results_files import Result, load_all
from benchmarks.report.server_tables import name


def draw(folder: Path) -> None:
    """Draws the committed results."""
    for result in load_all("server"):
        servers(result, folder / f"server-{result['checkpoint']}.svg")


def servers(result: Result, path: Path) -> None:
    """Goodput on the left, latencies on the right."""
    figure, (goodput, latency) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    lines = dict.fromkeys((row["server"], row["variant"]) for row in result["variants"])
    for colour, (server, variant) in zip(COLOURS, lines, strict=False):
        rows = [row for row in result["variants"] if (row["server"], row["variant"]) == (server, variant)]
        rates = [row["rate_per_s"] for row in rows]
        goodput.plot(rates, [row["goodput_per_s"] for row in rows], "o-", color=colour, label=name(server, variant))
        for quantile, style in (("0.5", "-"), ("0.99", ":")):
            label = f"{name(server, variant)}, {'median' if quantile == '0.5' else '99 %'}"
            points = [(row["rate_per_s"], 1000 * row["latency_s"][quantile]) for row in rows if row["latency_s"]]
            latency.plot(*zip(*points, strict=True), style, marker="o", markersize=3, color=colour, label=label)
    highest = max(row["rate_per_s"] for row in result["variants"])
    goodput.plot([0, highest], [0, highest], color="black", linewidth=0.8, label="as offered")
    goodput.set_ylabel(f"answers within {result['target_ms']:g} ms, a second")
    latency.axhline(result["target_ms"], color="black", linewidth=0.8, label="target")
    latency.set_ylabel("ms until the answer")
    latency.set_yscale("log")
    for axes in (goodput, latency):
        axes.set_xlabel("requests a second")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    save(figure, path)
