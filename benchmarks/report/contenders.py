"""Attentions and what is set of them, as result files name them: in tables, and among a paper's rows."""

from collections.abc import Sequence
from typing import Any

from attenuator.ops import OPERATORS
from benchmarks.report.results_files import Row

PLACES = {operator.key: place for place, operator in enumerate(OPERATORS)}


def place(row: Row) -> tuple[int, str]:
    """Where a row stands in a table: operators in their order, each first with nothing set."""
    return PLACES.get(row["attention"], len(PLACES)), shown(row)


def shown(row: Row) -> str:
    """An attention with what is set of it."""
    settings = ", ".join(f"{name} {_short(value)}" for name, value in row["settings"].items())
    return f"`{row['attention']}`" + (f", {settings}" if settings else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def fits(items: Sequence[str], settings: dict[str, Any]) -> bool:
    """Whether settings are those that a paper's row names.

    Args:
        items: `NAME=VALUE`, or `NAME` for any value but 0.
        settings: by name.
    """

    def has(item: str) -> bool:
        name, _, value = item.partition("=")
        return f"{settings[name]:g}" == value if value and name in settings else not value and bool(settings.get(name))

    return all(map(has, items))


def of_paper(rows: Sequence[dict[str, str]], attention: str, settings: dict[str, Any]) -> dict[str, str] | None:
    """A paper's row of an attention: of those whose settings it has, the one that names most; None where none fits."""
    fitting = [row for row in rows if row["attention"] == attention and fits(row["settings"].split(), settings)]
    return max(fitting, key=lambda row: len(row["settings"].split()), default=None)
