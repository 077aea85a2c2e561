"""The tables of `mca_tables.py` in benchmarks/papers/mca_tables.md, beside the MCA paper's; standard library only."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Row, paper_rows, read, select
from benchmarks.report.tables import Z_95, table

TITLES = {"sst2": "SST-2", "mrpc": "MRPC", "rte": "RTE", "cola": "CoLA", "hyperpartisan": "HND", "imdb": "IMDB"}
METRICS = {"mrpc": ("acc", "f1"), "cola": ("matthews",), "hyperpartisan": ("acc", "f1")}
HEADINGS = {
    "whole": "### The whole models, beside Table 1 (BERT-base)",
    "half": "### Half the layers, beside Table 2 (DistilBERT)",
    "windowed": "### A windowed model on long documents, beside Table 3 (Longformer)",
}
# Of the paper, beside which each model stands.
TABLES = dict(zip(HEADINGS, ("1", "2", "3"), strict=True))


def paper() -> dict[tuple[str, str, str, float], dict[str, str]]:
    """The paper's rows by table, task, metric and alpha (Kim and Ko, AAAI 2022)."""
    rows = paper_rows("mca_scores.csv")
    return {(row["table"], row["task"], row["metric"], float(row["alpha"])): row for row in rows}


def spread(values: Sequence[float]) -> str:
    """Mean, and half the width of its 95 % interval over seeds."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{statistics.mean(values):.1f} ± {Z_95 * statistics.stdev(values) / len(values) ** 0.5:.1f}"


def reduction(rows: Sequence[Row], field: str) -> str:
    """Mean over seeds."""
    return f"{statistics.mean(row[field] for row in rows):.2f}" if rows else ""


def lines(rows: Sequence[Row], model: str, lengths: Sequence[str]) -> Iterator[list[str]]:
    """A line for each task, metric and alpha."""
    theirs = paper()
    for key in (key for key in TITLES if select(rows, task=key)):
        mine = select(rows, task=key)
        for metric in METRICS.get(key, ("acc",)):
            name = f"{TITLES[key]}, {metric}"
            for alpha in sorted({row["alpha"] for row in mine}):
                at = select(mine, alpha=alpha)
                row = [name, f"{alpha:g}"]
                for one in lengths:
                    seeds = select(at, lengths=one)
                    row += [spread([each["scores"][metric] for each in seeds]), reduction(seeds, "real")]
                padded = select(at, lengths=lengths[-1] if alpha else "own")
                row.append(reduction(padded, "padded") + ("" if alpha else " (padding alone)"))
                found = theirs.get((TABLES[model], TITLES[key], metric, alpha))
                yield row + (
                    [f"{found['result']} ({found['baseline']})", found["flops_reduction_x"]] if found else ["", ""]
                )


def said_of(rows: Sequence[Row]) -> Iterator[str]:
    """Each task's files, training and how sure its scores are."""
    for key in (key for key in TITLES if select(rows, task=key)):
        mine = select(rows, task=key)
        one = mine[0]
        scores = next(row["scores"] for row in mine if not row["alpha"])
        exact = scores["acc"] / 100
        alike = " It gives every text the same label, so that its scores say nothing." if not scores["matthews"] else ""
        apart = 100 * Z_95 * (exact * (1 - exact) / one["texts"]) ** 0.5
        trained = "trained elsewhere"
        if "epochs" in one:
            most = f" of at most {one['most_train_texts']:,} texts" if one["most_train_texts"] else ""
            steps = f"{one['steps']:,} steps of {one['batch_tokens']:,} tokens"
            cut = ", cut to the time allowed" if one["ended"] == "time" else ""
            trained = f"{one['epochs']:g} epochs{most}{cut}, {steps} at a rate of {one['learning_rate']:g}"
        start = f" from {one['start']}" if one["start"] and "epochs" in one else ""
        yield (
            f"- {TITLES[key]}: {trained}{start}; {one['texts']:,} texts of {one['tokens']:.0f} tokens to test, "
            f"accuracy {100 * exact:.1f} ± {apart:.1f} where the commonest label has {one['commonest']:.1f}.{alike}"
        )


def scores() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "mca_tables.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.papers.mca_tables` measures it."
    result = read(path)
    parts = [
        f"Measured on an {result['machine']['processor']} ({ISA_NAMES[result['isa']]}), estimator "
        f"`{result['estimator']}`, {commit(*result['rows'])}, by `{result['command']}`."
    ]
    for model, heading in HEADINGS.items():
        mine = select(result["rows"], model=model)
        if not mine:
            continue
        lengths = [one for one in ("own", "padded") if select(mine, lengths=one)]
        titles = {"own": "n = own tokens", "padded": "n = 128"}
        heads = ["task", "alpha"]
        for one in lengths:
            heads += [f"score, {titles[one]}", "reduction"]
        counted = "counted as the paper" if "padded" in lengths else "counted with padding to 2,048"
        heads += [f"reduction {counted}", "paper: score (exact)", "paper: reduction"]
        parts += [heading, "\n".join(said_of(mine)), table(heads, list(lines(mine, model, lengths)))]
    return "\n\n".join(parts)
