"""Prints a report for people."""

from rich.console import Console
from rich.table import Table

from attenuator.bundle import Manifest
from attenuator.commands.report import Report
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
            table.add_row(name, value)
    console.print(table)


def _head(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _labels(manifest: Manifest) -> str:
    shown = ", ".join(manifest.labels[:LABELS_SHOWN])
    rest = len(manifest.labels) - LABELS_SHOWN
    return f"{len(manifest.labels)}: {shown}" + (f", and {rest} more" if rest > 0 else "")


def show(console: Console, found: Report) -> None:
    """Prints a report.

    Args:
        console: where to; it must take texts as they are, without markup.
        found: the report.
    """
    manifest, attention = found.manifest, found.manifest.attention
    source = manifest.provenance
    console.print(f"{manifest.name}  {found.folder}", style="bold")
    attributes = ", ".join(f"{name} {value}" for name, value in sorted(attention.attributes.items()))
    _pairs(
        console,
        {
            "revision": manifest.revision,
            "task": manifest.task,
            "labels": _labels(manifest),
            "longest input": f"{manifest.max_tokens} tokens",
            "vocabulary": f"{manifest.vocab_size} tokens",
            "attention": f"{attention.operator} in {attention.layers} layers ({attributes})",
            "operators": ", ".join(f"{name} x {count}" for name, count in found.nodes.items()),
            "pooling": manifest.pooling,
            "precision": PRECISIONS[manifest.precision].summary,
            "weights": f"{found.parameters:,}",
            "files": ", ".join(f"{name} {_bytes(size)}" for name, size in found.files.items()),
            "source": source.source,
            "data": source.data,
            "licence": source.licence,
            "tools": ", ".join(f"{name} {version}" for name, version in source.tools.items()),
            "parity": ", ".join(f"{name} {value:.2g}" for name, value in source.parity.items()),
        },
    )
    for knob in manifest.knobs:
        _head(console, f"Knob {knob.name}")
        whole = "whole number" if knob.dtype == "int32" else "number"
        _pairs(
            console,
            {
                "values": f"{whole}, {knob.low:g} to {knob.high:g} ({knob.unit})",
                "default": f"{knob.default:g}",
                "exact value": f"{knob.exact:g}",
                "accuracy": f"{knob.accuracy} as it grows",
                "what it does": knob.doc,
            },
        )
    _modelled(console, found)
    if found.measured:
        _measured(console, found)
    _head(console, "In short")
    for sentence in found.verdict:
        console.print(f"- {sentence}")


def _modelled(console: Console, found: Report) -> None:
    """What the cost model says, labelled as modelled."""
    name = found.knob.name if found.knob else ""
    _head(console, f"What {name or 'a faster attention'} can win, modelled (whole model, one sequence, one core)")
    values = list(found.crossover)
    columns = ["tokens", "attention's share", "free attention"]
    projection = found.manifest.attention.operator == "mca"
    if projection:
        columns += ["projection, of a layer", "free projection"]
    table = _table(*columns, *(f"at {value:g}" for value in values))
    for row in found.modelled:
        cells = [str(row.tokens), f"{row.attention_share:.0%}", f"{row.free_attention:.2f}x"]
        if projection:
            share = row.layer_projection_share
            cells += ["-" if share is None else f"{share:.1%}", f"{row.free_projection:.3f}x"]
        table.add_row(*cells, *(f"{row.speedups[value]:.2f}x" for value in values))
    if values:
        starts = [found.crossover[value] for value in values]
        table.add_row("faster from", "", "", *("never" if start is None else str(start) for start in starts))
    console.print(table)
    console.print(
        "Speed-ups are against the same model with exact softmax attention; free is what no knob can exceed. Modelled "
        f"from the model's shapes with rates measured on {found.modelled_on}; --measure times this bundle here.",
        style="dim",
    )


def _measured(console: Console, found: Report) -> None:
    """What the clock says."""
    over = f" over {found.knob.name}, ms (speed-up):" if found.knob else ", ms:"
    _head(console, f"Measured here{over} whole model, one sequence, shortest time")
    values = list(found.measured[0].knob_ms)
    table = _table("tokens", "exact softmax", *(f"at {value:g}" for value in values))
    for row in found.measured:
        cells = (f"{row.knob_ms[value]:.3g} ({row.exact_ms / row.knob_ms[value]:.2f}x)" for value in values)
        table.add_row(str(row.tokens), f"{row.exact_ms:.3g}", *cells)
    console.print(table)
    if any(row.value_flops for row in found.measured):
        _head(console, "Share of the exact value projection's multiply-adds spent")
        table = _table("tokens", *(f"at {value:g}" for value in values))
        for row in found.measured:
            table.add_row(str(row.tokens), *(f"{row.value_flops[value]:.0%}" for value in values))
        console.print(table)
