"""The part of a result that is committed: what pages and plots are made of, a row a line.

Programs write whole results to `results/raw`, which git ignores. Of a distribution the summary keeps the median, and
the quartiles where plots draw them; elapsed time only where several threads ran. A program that goes on where it was
stopped finds its `rows` in the summary too: they stay whole, with the names of fields and what a row says of its tree
written once, in `fields` and `trees`; so do lists of like objects in other results.
"""

from collections.abc import Collection
from typing import Any

STATISTICS = {"median", "low", "high", "min", "max"}
# Ratios of which plots draw more than the median.
DRAWN = {"speed_up": ("median", "low", "high"), "projection": ("median", "low")}
# Fields of distributions, or of distributions by contender: numbers alone, of which the first is the median.
PLAIN = {"cpu_us", "wall_us", "speed_up", "speed_up_wall", "over_softmax", "over_softmax_wall", "over_fused"}
PLAIN |= {"over_fp32", "over_ort", "over_exact", "of_free", "projection", "whole", "whole_by_ort"}
OF_A_TREE = ("commit", "modified", "kernels")
# What no page and no plot reads; on one thread, elapsed time besides. Then by benchmark and section.
LEFT_OUT = {"rounds", "repeats", "node_times", "over_ort_sorted"}
UNREAD = {
    "operators": {"attention": {"errors"}, "ragged": {"errors", "contenders", "lengths"}, "frontier": {"errors"}},
    "models": {
        "models": {"errors", "contenders"},
        "ragged": {"errors", "contenders", "lengths", "over_softmax"},
        "int8": {"contenders", "bytes"},
    },
    "server": {"rounds": {"loads"}},
}
ELAPSED = {"wall_us", "speed_up_wall", "over_softmax_wall"}


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What is committed of a result."""
    unread = UNREAD.get(result.get("benchmark", ""), {})
    short = {
        key: [_short(row, "", 2, unread.get(key, set())) for row in value]
        if isinstance(value, list)
        else _short(value, "", 2)
        for key, value in result.items()
        if key != "rows"
    }
    if "rows" not in result:
        return short
    trees: list[dict[str, Any]] = []
    fields: list[list[str]] = []
    rows = []
    for row in result["rows"]:
        tree = {name: row[name] for name in OF_A_TREE if name in row}
        values = {name: value for name, value in row.items() if name not in tree}
        rows.append([_place(tree, trees), _place(list(values), fields), *values.values()])
    return short | {"trees": trees, "fields": fields, "rows": rows}


def whole(summarised: dict[str, Any]) -> dict[str, Any]:
    """A summary with rows and distributions as programs write them; any other result as it is."""
    if "trees" not in summarised:
        return {key: _told(value, "") for key, value in summarised.items()}
    trees, fields = summarised["trees"], summarised["fields"]
    rows = [dict(zip(fields[names], values, strict=True)) | trees[tree] for tree, names, *values in summarised["rows"]]
    return {key: value for key, value in summarised.items() if key not in ("trees", "fields")} | {"rows": rows}


def _short(value: Any, field: str, threads: int, unread: Collection[str] = ()) -> Any:
    if isinstance(value, list):
        rows = [_short(item, field, threads) for item in value]
        names = list(rows[0]) if rows and isinstance(rows[0], dict) else []
        if names and all(isinstance(row, dict) and list(row) == names for row in rows):
            return {"fields": names, "rows": [list(row.values()) for row in rows]}
        return rows
    if not isinstance(value, dict):
        return value
    if value.keys() == STATISTICS:
        kept = {name: value[name] for name in DRAWN.get(field, ("median",))}
        return kept if field not in PLAIN else kept["median"] if len(kept) == 1 else list(kept.values())
    threads = value.get("threads", threads)
    left_out = LEFT_OUT.union(unread, ELAPSED if threads == 1 else ())
    # Below a field of ratios stand contenders, whose names say nothing of what is kept.
    return {
        name: _short(item, field if field in PLAIN else name, threads)
        for name, item in value.items()
        if name not in left_out
    }


def _told(value: Any, field: str) -> Any:
    """What `_short` made of it, with the names that it left out."""
    if field in PLAIN and isinstance(value, float | int):
        return {"median": value}
    if isinstance(value, list):
        if field in PLAIN:
            return dict(zip(("median", "low", "high"), value, strict=False))
        return [_told(item, field) for item in value]
    if not isinstance(value, dict) or "median" in value:
        return value
    if value.keys() == {"fields", "rows"}:
        return [_told(dict(zip(value["fields"], row, strict=True)), field) for row in value["rows"]]
    return {name: _told(item, field if field in PLAIN else name) for name, item in value.items()}


def _place(item: Any, known: list[Any]) -> int:
    if item not in known:
        known.append(item)
    return known.index(item)
