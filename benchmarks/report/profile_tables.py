"""The tables of `models/profile_model.py`: where whole models' time goes; standard library only."""

from collections.abc import Iterator

from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, Result, Row, load
from benchmarks.report.tables import table

MODELS = {"contracts": "`contracts`", "paper": "6 layers of 256 channels"}
PRECISIONS = {"fp32": "In fp32", "int8": "With linear layers in int8"}
# How near a model is to itself with attention that costs nothing, by contender.
OF_FREE = {
    "model": "speed, as a share of free attention's",
    "tables of int16": "the same, tables of int16",
}


def time(microseconds: float) -> str:
    """Milliseconds with two or three digits."""
    return f"{microseconds / 1000:.3g}"


def lines(rows: list[Row]) -> Iterator[list[str]]:
    """The lines of one table, whose columns are these rows."""
    kinds = dict.fromkeys(kind for row in rows for kind in row["nodes"])
    for kind in sorted(kinds, key=lambda kind: -max(row["nodes"].get(kind, {"share": 0})["share"] for row in rows)):
        found = [row["nodes"].get(kind) for row in rows]
        yield [kind, *(f"{time(node['us'])} ({node['share']:.1%})" if node else "" for node in found)]
    yield ["all nodes", *(time(sum(node["us"] for node in row["nodes"].values())) for row in rows)]
    yield ["a run, CPU time", *(time(row["contenders"]["model"]["cpu_us"]["median"]) for row in rows)]
    for contender, words in OF_FREE.items():
        yield [words, *(f"{row['of_free'][contender]['median']:.2f}" for row in rows)]
    if any("tokenizing" in row for row in rows):
        found = [row.get("tokenizing") for row in rows]
        yield ["beside it: tokenizing", *(time(taken["cpu_us"]["median"]) if taken else "" for taken in found)]


def origin(result: Result) -> str:
    """Where the figures come from, in one sentence."""
    [num_hashes] = {row["num_hashes"] for row in result["profiles"]}
    machine, isa, version = result["machine"], result["isa"], result["versions"]["onnxruntime"]
    return (
        f"Milliseconds on one thread, {num_hashes} hashes, of {machine['processor']} ({ISA_NAMES[isa]}), "
        f"onnxruntime {version}, {commit(result)}, load average "
        f"{result['load_average']:.1f} before the run: each node's shortest run as ONNX Runtime's profiler counts it, "
        "below it medians of contenders in turns. `python -m benchmarks.models.profile_model && make gen` measures it."
    )


def profiles() -> str:
    """Both tables, and where they were measured."""
    result = load("profile")
    if result is None:
        return "No result is committed; `python -m benchmarks.models.profile_model` measures it."
    parts = [origin(result)]
    for precision, words in PRECISIONS.items():
        rows = [row for row in result["profiles"] if row["precision"] == precision]
        if not rows:
            continue
        head = ["node", *(f"{MODELS[row['model']]}, {row['n']:,} tokens" for row in rows)]
        parts += [f"{words}:", table(head, list(lines(rows)))]
    return "\n\n".join(parts)
