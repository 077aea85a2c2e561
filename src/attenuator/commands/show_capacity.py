"""Prints what a rate of requests takes, with the arithmetic."""

from itertools import groupby

from rich.console import Console
from rich.table import Table

from attenuator.calibration.schema import shown
from attenuator.commands.capacity import HOUR_S, Capacity, CapacityRow
from attenuator.commands.figures import plain


def show_capacity(console: Console, capacity: Capacity) -> None:
    """Prints one table for each length, and how the last line of all came about.

    Args:
        console: where to; it must take texts as they are, without markup.
        capacity: what to print.
    """
    demand = capacity.demand
    cores = f"{capacity.cores} core{'s' * (capacity.cores != 1)}"
    console.print()
    console.print(
        f"Capacity for {demand.rate:,.10g} requests a second of one text each, replicas of {cores}", style="bold"
    )
    tables = [list(rows) for _, rows in groupby(capacity.rows, key=lambda row: row.tokens)]
    for rows in tables:
        console.print(f"Texts of {rows[0].tokens} tokens:")
        console.print(_table(rows))
    console.print(f"Times are {capacity.source}. Tokenizing and HTTP come on top.", style="dim")
    for line in arithmetic(capacity, tables[-1][-1]):
        console.print(line, style="dim")


def _table(rows: list[CapacityRow]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    priced = rows[0].price_per_hour is not None
    # Headings of two lines, one knob and one reason a line, none of which breaks, so that the table fits a terminal of
    # 80 columns.
    columns = ["agreement", "ms a\ntext", "a\nsecond", "replicas", "busy", *["price\nan hour", "per\nmillion"] * priced]
    table.add_column("setting", no_wrap=True)
    table.add_column("because", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        agreement = "" if row.agreement is None else f"{row.agreement:.3f}"
        cells = [agreement, plain(1e3 * row.seconds), plain(row.per_s), f"{row.replicas:,}", f"{row.busy:.0%}"]
        if row.price_per_hour is not None and row.price_per_million is not None:
            cells += [f"{row.price_per_hour:,.2f}", f"{row.price_per_million:,.2f}"]
        setting = shown(row.knobs).replace(", ", ",\n") or "as it is"
        table.add_row(setting, ",\n".join(row.reasons), *cells)
    return table


def arithmetic(capacity: Capacity, row: CapacityRow) -> list[str]:
    """How a line came about, for a reader who wants to check it or to put in other numbers."""
    demand = capacity.demand
    allowed = row.per_s * demand.utilisation
    lines = [
        f"Arithmetic for {shown(row.knobs) or 'this bundle'} at {row.tokens} tokens: a text adds "
        f"{plain(row.seconds)} s of {capacity.threads} thread{'s' * (capacity.threads != 1)} to a full batch, so a "
        f"replica answers {capacity.cores} / ({capacity.threads} x {plain(row.seconds)}) = {plain(row.per_s)} texts a "
        f"second. Busy {demand.utilisation:.0%} of the time it answers {plain(allowed)}; "
        f"{demand.rate:,.10g} / {plain(allowed)} = {plain(demand.rate / allowed)}, rounded up: {row.replicas:,}."
    ]
    if demand.price_per_hour is not None:
        lines.append(
            f"{row.replicas:,} x {demand.price_per_hour:,.10g} = {row.price_per_hour:,.10g} an hour, in which "
            f"{HOUR_S * demand.rate:,.0f} requests come: {plain(row.price_per_million or 0.0)} for a million."
        )
    return lines
