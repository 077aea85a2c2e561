"""The tables of `end_to_end.py`: a classifier as served today, beside itself as a bundle; standard library only."""

from collections.abc import Iterator

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
    texts = f"{row['documents']} texts timed, cut at {row['cut']} tokens, {row['mean_tokens']:.0f} in the mean"
    return f"{what}; {texts}, {threads}:"


def block(row: Row) -> str:
    """Heading and table of one row of the result file."""
    head = ["", "documents a second", f"times as fast as {ORT}", "times as fast as exact"]
    head += ["agreement", "accuracy"] if "labels" in row else []
    return f"{heading(row)}\n\n{table(head, list(body(row)))}"


def parts(result: Result) -> Iterator[str]:
    """The tables of a result of `end_to_end.py`: one for each model, cut and number of threads.

    Random weights are shown of shapes alone that no trained model has.
    """
    trained = result.get("texts", [])
    sizes = {(row["layers"], row["hidden"]) for row in trained}
    untrained = [row for row in result.get("shapes", []) if (row["layers"], row["hidden"]) not in sizes]
    yield from map(block, [*trained, *untrained])
