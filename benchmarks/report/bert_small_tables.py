"""The table of `bert_small.py` in benchmarks/papers/bert_small.md, beside the YOSO paper's; standard library only."""

import statistics
from collections.abc import Sequence

from benchmarks.report.contenders import of_paper, place, shown
from benchmarks.report.lra_tables import of_seeds
from benchmarks.report.origins import commit
from benchmarks.report.results_files import RESULTS, Row, paper_rows, read, select
from benchmarks.report.tables import Z_95, table

TITLES = {"imdb": "IMDb", "sst2": "SST-2"}
SIZE = ("task", "layers", "tokens", "train", "epochs", "test")
COLUMNS = {"qnli": "QNLI", "qqp": "QQP, F1", "mnli_m": "MNLI"}


def paper() -> list[dict[str, str]]:
    """The paper's rows (Zeng et al., "You Only Sample (Almost) Once", ICML 2021, appendix, table 3)."""
    return paper_rows("yoso_bert_small.csv")


def accuracies(rows: Sequence[Row]) -> str:
    """A line for each attention."""
    body = [["the commonest label", f"{100 * rows[0]['commonest']:.1f}", "", "", *("" for _ in COLUMNS)]]
    for name, one in {shown(row): row for row in rows}.items():
        mine = [row for row in rows if shown(row) == name]
        timed = [row["train_cpu_s"] for row in mine if row["train_cpu_s"] is not None]
        seconds = f"{statistics.median(timed):,.0f}" if timed else ""
        theirs = of_paper(paper(), one["attention"], one["settings"]) or {}
        line = [name, of_seeds(mine), seconds, theirs.get("method", "")]
        body.append([*line, *(theirs.get(key, "") for key in COLUMNS)])
    heads = ["attention", "accuracy", "training, CPU s", "in the paper, pretrained"]
    return table([*heads, *COLUMNS.values()], body)


def said_of(one: Row, rows: Sequence[Row]) -> str:
    """The size, and which differences the test file cannot tell from chance."""
    mean = statistics.mean(row["accuracy"] for row in rows)
    apart = 100 * Z_95 * (2 * mean * (1 - mean) / one["test"]) ** 0.5
    return (
        f"{TITLES[one['task']]}: {one['layers']} layers, {one['train']:,} texts of at most {one['tokens']:,} tokens to "
        f"learn from, {one['epochs']:g} epochs, {one['steps']:,} steps, {one['test']:,} texts to test. Two models that "
        f"are less than {apart:.1f} points apart may differ by the draw of the test file alone. Accuracy in percent, "
        "mean ± standard deviation over seeds (number of seeds):"
    )


def bert_small() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "bert_small.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.papers.bert_small` measures it."
    result = read(path)
    rows = sorted(result["rows"], key=lambda row: (place(row), row["seed"]))
    parts = [
        f"Trained on an {result['machine']['processor']}, 1 thread, torch {result['versions']['torch']}, "
        f"{commit(*rows)}, by `{result['command']}`."
    ]
    for size in dict.fromkeys(tuple(row[name] for name in SIZE) for row in rows):
        mine = select(rows, **dict(zip(SIZE, size, strict=True)))
        parts += [said_of(mine[0], mine), accuracies(mine)]
    return "\n\n".join(parts)
