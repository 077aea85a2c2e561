"""The tables of `end_to_end.py`: a classifier as served today, beside itself as a bundle; standard library only."""

import re
from collections.abc import Iterator, Sequence

from benchmarks.report.results_files import Result, Row
from benchmarks.report.tables import table, times

ORT = "ONNX Runtime fp32"


def percent(share: Row) -> str:
    """A share with its interval, in percent."""
    return f"{share['share']:.1%} ({share['low']:.1%} to {share['high']:.1%})"


def body(row: Row) -> Iterator[list[str]]:
    """A line for each contender."""
    wall = row["threads"] > 1
    for name, record in row["contenders"].items():
        us = record["wall_us" if wall else "cpu_us"]["median"] / row["documents"]
        cells = [name, f"{1e6 / us:.0f}" if us < 1e5 else f"{1e6 / us:.1f}"]
        cells += [times(row[field][name]["median"]) for field in ("over_ort", "over_exact")]
        if "labels" in row:
            labels = row["labels"].get(name)
            cells += [percent(labels["agreement"]), percent(labels["accuracy"])] if labels else ["", ""]
        yield cells


def heading(row: Row) -> str:
    """What was measured."""
    size = f"{row['layers']} layers of {row['hidden']} channels"
    threads = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
    what = f"`{row['model']}`, {size}" if "labels" in row else f"{size}, random weights, for time alone"
    return f"{what}; texts cut at {row['cut']} tokens, {row['mean_tokens']:.0f} in the mean, {threads}:"


def keep_default(row: Row) -> float:
    """The bundle's; results before it was recorded have it as the largest value."""
    return float(row.get("keep_default", max(row["keep"], default=1.0)))


def keep_values(row: Row) -> str:
    """The default of `keep`, for a sentence: of the bundle that merges where there is one."""
    merged = row.get("merged_default")
    return f"{keep_default(row):g}" if merged is None else f"{merged:g}"


def default_contenders(row: Row) -> dict[str, str]:
    """A row's contenders under names that all models share: without sorted batches, `keep` at its default alone."""
    defaults = [(f"keep {keep_default(row):g}", "keep")]
    if row.get("merged_default") is not None:
        defaults.append((f"keep {row['merged_default']:g}, merged", "keep, merged"))
    short = {
        f"{precision}{default}": f"{precision}{name}" for precision in ("", "int8, ") for default, name in defaults
    }
    names = {name: short.get(name, name) for name in row["contenders"] if not name.endswith("sorted")}
    return {short: name for name, short in names.items() if not re.search(r"keep \d", short)}


def defaults_without_twins(row: Row) -> dict[str, str]:
    """The same without bundles that drop, where such as merge were measured."""
    names = default_contenders(row)
    return {short: name for short, name in names.items() if f"{short}, merged" not in names}


def side_by_side(rows: Sequence[Row]) -> str:
    """Heading and one table of several models, each at the default of `keep`; agreement and accuracy without intervals.

    Where bundles that merge were measured as well, those that drop are left out.

    Args:
        rows: of the result file, one for each model.
    """
    head, columns = [""], [defaults_without_twins(row) for row in rows]
    lines: dict[str, list[str]] = {name: [name] for column in columns for name in column}
    for row, column in zip(rows, columns, strict=True):
        cells = {name: rest for name, *rest in body(row)}
        head += [f"`{row['model']}`: a second", "× ONNX Runtime", "× exact", "agreement", "accuracy"]
        for short, line in lines.items():
            speed, over_ort, over_exact, *shares = cells.get(column.get(short, ""), [""] * 5)
            line += [speed, over_ort, over_exact, *(share.partition(" (")[0] for share in shares)]
    headings = (f"{heading(row)[:-1]}, `keep` {keep_values(row)}" for row in rows)
    return f"{'. '.join(headings)}.\n\n{table(head, list(lines.values()))}"


def block(row: Row) -> str:
    """Heading and table of one row of the result file."""
    head = ["", "documents a second", f"times as fast as {ORT}", "times as fast as exact"]
    head += ["agreement", "accuracy"] if "labels" in row else []
    return f"{heading(row)}\n\n{table(head, list(body(row)))}"


def parts(result: Result, *, whole: bool) -> Iterator[str]:
    """The tables.

    Args:
        result: of `end_to_end.py`.
        whole: all of them; else one, of each checkpoint's longest texts on the fewest threads.
    """
    rows = result.get("texts", [])
    if whole:
        yield from map(block, [*rows, *result.get("shapes", [])])
        return
    longest: dict[str, Row] = {}
    for row in rows:
        if "labels" in row and row["cut"] >= longest.get(row["model"], row)["cut"]:
            longest[row["model"]] = row
    yield side_by_side(list(longest.values()))
