"""The report of `attenuator inspect`, printed for people."""

from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from attenuator.bundle import TRAINED_POSITIONS, Manifest
from attenuator.commands.calibrated import show_calibration
from attenuator.commands.figures import plain
from attenuator.commands.report import Report
from attenuator.commands.show_capacity import show_capacity
from attenuator.errors import printable
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.precision import PRECISIONS

LABELS_SHOWN = 12


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _pairs(console: Console, pairs: dict[str, str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in pairs.items():
        if value:
            table.add_row(name, printable(value))  # a bundle is not trusted with the terminal
    console.print(table)


def _head(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _longest(manifest: Manifest) -> str:
    positions = manifest.provenance.positions
    return f"{manifest.max_tokens} tokens" + (f", positions {positions}" if positions != TRAINED_POSITIONS else "")


def _labels(manifest: Manifest) -> str:
    if manifest.task == "regression":
        return manifest.labels[0]
    shown = ", ".join(manifest.labels[:LABELS_SHOWN])
    rest = len(manifest.labels) - LABELS_SHOWN
    return f"{len(manifest.labels)}: {shown}" + (f", and {rest} more" if rest > 0 else "")


def _task(manifest: Manifest) -> str:
    activation = manifest.provenance.activation
    if manifest.task != "regression" or not activation:
        return manifest.task
    return f"regression; sentence-transformers applies {activation} to the score, answers hold the score before it"


def _thresholds(manifest: Manifest) -> str:
    if len(set(manifest.thresholds)) <= 1:
        return "".join(f"{value:g} for every label" for value in manifest.thresholds[:1])
    shown = [f"{label} {value:g}" for label, value in zip(manifest.labels, manifest.thresholds, strict=True)]
    return ", ".join(shown[:LABELS_SHOWN]) + (", ..." if len(shown) > LABELS_SHOWN else "")


def _selection(manifest: Manifest) -> str:
    chosen = manifest.provenance.selection
    if chosen is None:
        return ""
    how = f"schedule {chosen.schedule}" + (f", merge {chosen.merge}" if chosen.merge else "")
    if chosen.agreement is None:
        return f"{how}: set at export or its default; no texts chose it in {manifest.precision}"
    ends = "" if chosen.agreement_low is None else f" (95 % interval from {chosen.agreement_low:.1%})"
    timed = (
        ""
        if chosen.gain is None
        else f", {chosen.gain:.2f} times as fast as with every token [{chosen.gain_low:.2f}, {chosen.gain_high:.2f}] "
        "on one thread where it was exported"
    )
    return (
        f"{how}, chosen by {chosen.texts} texts: at the defaults {chosen.agreement:.1%} of the answers agree with the "
        f"exact ones{ends}{timed}"
    )


def show(console: Console, report: Report) -> None:
    """Prints a report.

    Args:
        console: where to; it must take texts as they are, without markup.
        report: what to print.
    """
    manifest, attention = report.manifest, report.manifest.attention
    source, taught = manifest.provenance, manifest.taught
    console.print(f"{manifest.name}  {report.folder}", style="bold")
    attributes = ", ".join(f"{name} {value}" for name, value in sorted(attention.attributes.items()))
    _pairs(
        console,
        {
            "revision": manifest.revision,
            "task": _task(manifest),
            "score" if manifest.task == "regression" else "labels": _labels(manifest),
            "thresholds": _thresholds(manifest),
            "longest input": _longest(manifest),
            "vocabulary": f"{manifest.vocab_size} tokens",
            "attention": f"{attention.operator} in {attention.layers} layers ({attributes})",
            "operators": ", ".join(f"{name} x {count}" for name, count in report.nodes.items()),
            "pooling": manifest.pooling,
            "precision": PRECISIONS[manifest.precision].summary,
            "weights": f"{report.parameters:,}",
            "files": ", ".join(f"{name} {_bytes(size)}" for name, size in report.files.items()),
            "source": source.source,
            "data": source.data,
            "licence": source.licence,
            "tools": ", ".join(f"{name} {version}" for name, version in source.tools.items()),
            "parity": ", ".join(f"{name} {value:.2g}" for name, value in source.parity.items()),
            "selection": _selection(manifest),
            "taught": "" if taught is None else f"a second graph answers below {taught.knob} {taught.below:g}",
        },
    )
    for knob in manifest.knobs:
        _head(console, f"Knob {knob.name}")
        whole = "whole number" if knob.dtype == "int32" else "number"
        _pairs(
            console,
            {
                "values": f"{whole}, {knob.low:g} to {knob.high:g} ({knob.unit}); accuracy {knob.accuracy} as it grows",
                "default": f"{knob.default:g}; exact value {knob.exact:g}",
                "what it does": knob.doc,
                **report.uses.get(knob.name, {}),
            },
        )
    if report.calibration:
        show_calibration(console, report.calibration)
    _modelled(console, report)
    if report.measured:
        _measured(console, report)
    if report.capacity:
        show_capacity(console, report.capacity)
    _head(console, "In short")
    for sentence in report.verdict:
        console.print(f"- {sentence}")


def _others(report: Report, knob: str) -> str:
    """The defaults at which the other knobs stay, for a heading; empty where there are no others."""
    others = ", ".join(f"{each.name} {each.default:g}" for each in report.manifest.knobs if each.name != knob)
    return f", at {others}" if others else ""


def _modelled(console: Console, report: Report) -> None:
    """What the time model says, labelled as modelled."""
    names = list(report.parts)
    what = {0: "a faster attention", 1: "".join(names)}.get(len(names), "each knob")
    _head(console, f"What {what} can win, modelled (whole model, one sequence, one core)")
    console.print(_modelled_table(report))
    against, most = "the same model with exact softmax attention", "'free'"
    if len(names) > 1:
        against, most = "the same model with that knob exact, the other knobs at their defaults", "'at most'"
    elif "rows" in report.parts.values():
        against, most = "the same model with every token", ""
    console.print(
        f"Speed-ups are against {against}. "
        + (f"{most} is the speed-up if what the knob can spare cost nothing. " if most else "")
        + f"All are modelled from the model's shapes with rates measured on {report.modelled_on}; --measure times this "
        "bundle here.",
        style="dim",
    )


class _Column(NamedTuple):
    """A column of the table of what knobs can win: its head, a cell for each length, and what stands below them."""

    head: str
    cells: list[str]
    below: str = ""


def _modelled_table(report: Report) -> Table:
    """What the knobs can win, over lengths and their values: each knob varies alone."""
    columns = []
    if "attention" in report.parts.values() or set(report.parts.values()) in (set(), {"projection"}):
        columns.append(_Column("attention's share", [f"{row.attention_share:.0%}" for row in report.modelled]))
        columns.append(_Column("free attention", [f"{row.free_attention:.2f}x" for row in report.modelled]))
    for name in report.parts:
        columns += _knob_columns(report, name)
    table = _table("tokens", *(column.head for column in columns))
    for index, row in enumerate(report.modelled):
        table.add_row(str(row.tokens), *(column.cells[index] for column in columns))
    starts = [start for each in report.crossover.values() for start in each.values()]
    if any(start is None or start > report.modelled[0].tokens for start in starts):
        table.add_row("faster from", *(column.below for column in columns))
    return table


def _knob_columns(report: Report, name: str) -> list[_Column]:
    alone, part = len(report.parts) == 1, report.parts[name]
    rows = [row.knobs[name] for row in report.modelled]
    columns = []
    if part == "projection":
        if alone:
            shares = ["-" if row.layer_share is None else f"{row.layer_share:.1%}" for row in rows]
            columns.append(_Column(f"{part}, of a layer", shares))
        columns.append(_Column(f"free {part}" if alone else f"{name} at most", [f"{row.limit:.3f}x" for row in rows]))
    for value, start in report.crossover.get(name, {}).items():
        cells = [f"{row.speedups[value]:.2f}x" for row in rows]
        below = "never" if start is None else str(start)
        columns.append(_Column(f"{'at' if alone else name} {value:g}", cells, below))
    return columns


def _measured(console: Console, report: Report) -> None:
    """What the clock says: one table per knob, and one for each further output of the graph."""
    how = "whole model, one sequence, shortest time"
    first = report.measured[0]
    if not first.knob_ms:
        own = first.own_ms is not None
        _head(console, f"Measured here, ms{' (speed-up)' if own else ''}: {how}")
        table = _table("tokens", "exact softmax", *(["this bundle"] if own else []))
        for row in report.measured:
            cells = [] if row.own_ms is None else [f"{plain(row.own_ms)} ({row.exact_ms / row.own_ms:.2f}x)"]
            table.add_row(str(row.tokens), plain(row.exact_ms), *cells)
        console.print(table)
    for name, times in first.knob_ms.items():
        _head(console, f"Measured here over {name}{_others(report, name)}, ms (speed-up): {how}")
        table = _table(
            "tokens", f"{name} exact" if first.base_ms else "exact softmax", *(f"at {value:g}" for value in times)
        )
        for row in report.measured:
            base = row.base_of(name)
            cells = [f"{plain(ms)} ({base / ms:.2f}x)" for ms in row.knob_ms[name].values()]
            table.add_row(str(row.tokens), plain(base), *cells)
        console.print(table)
    for output, by_knob in first.outputs.items():
        for name, values in by_knob.items():
            _head(console, f"{output} over {name}: {SEQUENCE_OUTPUTS[output].doc}")
            table = _table("tokens", *(f"at {value:g}" for value in values))
            for row in report.measured:
                table.add_row(str(row.tokens), *(f"{value:.3g}" for value in row.outputs[output][name].values()))
            console.print(table)
