"""Results of `attenuator bench`: a table for people, JSON, CSV, a plot."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attenuator.calibration import schema
from attenuator.commands.bench.grid import Setting
from attenuator.commands.bench.sweep import Row, Sweep

LATE_MS = 10.0  # from which on the load generator itself is too slow to be ignored


def frontier(rows: Sequence[Row]) -> list[bool]:
    """Whether no other setting at a row's rate agrees as often with as much goodput, one of them better."""

    def worth(row: Row) -> tuple[float, float]:
        return (0.0 if row.agreement is None else row.agreement, row.goodput_per_s)

    def beats(one: Row, other: Row) -> bool:
        pairs = list(zip(worth(one), worth(other), strict=True))
        return one.rate_per_s == other.rate_per_s and all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    return [row.goodput_per_s > 0 and not any(beats(other, row) for other in rows) for row in rows]


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows in JSON's types, with whether each is on the frontier."""
    return [asdict(row) | {"frontier": on} for row, on in zip(rows, frontier(rows), strict=True)]


def as_json(sweep: Sweep) -> str:
    """Everything that was measured, as one JSON object."""
    head: dict[str, Any] = {
        "url": str(sweep.url),
        "model": sweep.model.name,
        "revision": sweep.model.revision,
        "device": sweep.model.device,
        "texts": len(sweep.texts),
        "tokens": sweep.tokens,
        "seconds": sweep.seconds,
        "target_ms": sweep.target_ms,
        "seed": sweep.seed,
        "capacity_per_s": sweep.capacity_per_s,
    }
    return json.dumps(head | {"rows": table(sweep.rows)}, indent=1) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """The rows with a column for each knob."""
    flat = [{**row.pop("knobs"), **row} for row in table(rows)]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, flat[0] if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return stream.getvalue()


def write(sweep: Sweep, path: Path) -> None:
    """Writes the results, as CSV or JSON by the file's name."""
    path.write_text(as_csv(sweep.rows) if path.suffix == ".csv" else as_json(sweep), encoding="utf-8")


def shown(setting: Setting) -> str:
    """A setting in words, for a model without knobs too."""
    return schema.shown(setting) or "no knob"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def show(console: Console, sweep: Sweep) -> None:
    """Prints the table of the frontier."""
    device = f" on {sweep.model.device}" if sweep.model.device else ""
    tokens = f"{min(sweep.tokens)} to {max(sweep.tokens)} tokens"
    console.print(
        f"{sweep.model.name}{device}: {len(sweep.texts)} texts of {tokens}; exactly, it answers "
        f"{sweep.capacity_per_s:.3g} a second"
    )
    grid = Table(box=None, pad_edge=False, header_style="bold")
    names = [knob.name for knob in sweep.model.knobs]
    for name in ("a second", *names, "p50 ms", "p90 ms", "p99 ms", "goodput/s", "refused", "failed", "agreement", ""):
        grid.add_column(name, justify="right", no_wrap=True)
    rate = None
    for row, on in zip(sweep.rows, frontier(sweep.rows), strict=True):
        if rate not in (None, row.rate_per_s):
            grid.add_section()
        rate = row.rate_per_s
        latencies = [_number(value) for value in (row.p50_ms, row.p90_ms, row.p99_ms)]
        shares = [f"{count / max(1, row.requests):.1%}" for count in (row.refused, row.failed)]
        agreement = "-" if row.agreement is None else f"{row.agreement:.1%}"
        knobs = [f"{row.knobs[name]:g}" for name in names]
        grid.add_row(
            _number(rate), *knobs, *latencies, _number(row.goodput_per_s), *shares, agreement, "*" if on else ""
        )
    console.print(grid)
    console.print(
        f"Latency counts from the time at which a request was to leave; goodput is the answers within "
        f"{sweep.target_ms:g} ms. * no other setting at this rate agrees as often with as much goodput.",
        style="dim",
    )
    late_ms = max((row.late_ms for row in sweep.rows), default=0.0)
    if late_ms > LATE_MS:
        console.print(
            f"The load generator itself was up to {late_ms:.0f} ms late (99th percentile): latencies are upper bounds."
        )


def plot(sweep: Sweep, path: Path) -> None:
    """Draws latency over the rate, and the frontier of agreement and goodput at each rate; needs matplotlib."""
    from matplotlib.figure import Figure  # of the extra `plots`

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    latency, trade = figure.subplots(1, 2)
    settings = [row.knobs for row in sweep.rows if row.rate_per_s == sweep.rows[0].rate_per_s]
    for setting in settings:
        rows = [row for row in sweep.rows if row.knobs == setting and row.p99_ms is not None]
        latency.plot([row.rate_per_s for row in rows], [row.p99_ms for row in rows], marker="o", label=shown(setting))
    latency.axhline(sweep.target_ms, color="grey", linewidth=0.8, linestyle="--")
    latency.set(xlabel="requests a second", ylabel="99th percentile of latency, ms", yscale="log")
    on = frontier(sweep.rows)
    for index, rate in enumerate(dict.fromkeys(row.rate_per_s for row in sweep.rows)):
        points = [
            (row.goodput_per_s, row.agreement, best)
            for row, best in zip(sweep.rows, on, strict=True)
            if row.rate_per_s == rate and row.agreement is not None
        ]
        line = sorted((goodput, agreement) for goodput, agreement, best in points if best)
        trade.scatter([each[0] for each in points], [each[1] for each in points], color=f"C{index}", marker="x")
        trade.plot([each[0] for each in line], [each[1] for each in line], f"C{index}", label=f"{rate:.3g} a second")
    trade.set(xlabel=f"answers within {sweep.target_ms:g} ms, a second", ylabel="agreement with the exact answers")
    for axes in (latency, trade):
        axes.grid(color="0.9")
        axes.legend(fontsize="small")
    figure.suptitle(f"{sweep.model.name}: {sweep.url}")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
