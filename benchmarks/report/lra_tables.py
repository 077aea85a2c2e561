"""The tables of `papers/long_range_arena.py`, beside the YOSO paper's; standard library only."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.report.contenders import of_paper, place, shown
from benchmarks.report.origins import commit
from benchmarks.report.results_files import RESULTS, Row, paper_rows, read, select
from benchmarks.report.tables import Z_95, table

TITLES = {"listops": "ListOps", "text": "Text", "pathfinder": "Pathfinder"}


def paper() -> list[dict[str, str]]:
    """The paper's rows (Zeng et al., "You Only Sample (Almost) Once", ICML 2021, Table 3)."""
    return paper_rows("yoso_lra.csv")


def of_seeds(rows: Sequence[Row]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    values = [100 * row["accuracy"] for row in rows]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread} ({len(values)})" if values else ""


def accuracies(rows: Sequence[Row]) -> str:
    """A line for each attention, a column for each task here and in the paper."""
    tasks = [key for key in TITLES if select(rows, task=key)]
    body = [["the commonest label", *(f"{100 * select(rows, task=key)[0]['commonest']:.1f}" for key in tasks)]]
    body[0] += ["", *("" for _ in tasks)]
    for name, one in {shown(row): row for row in rows}.items():
        mine = [row for row in rows if shown(row) == name]
        theirs = of_paper(paper(), one["attention"], one["settings"]) or {}
        line = [name, *(of_seeds(select(mine, task=key)) for key in tasks), theirs.get("method", "")]
        body.append([*line, *(theirs.get(key, "") for key in tasks)])
    titles = [TITLES[key] for key in tasks]
    return table(["attention", *titles, "in the paper", *(f"{title}, paper" for title in titles)], body)


def said_of(rows: Sequence[Row]) -> Iterator[str]:
    """Each task's size, and which differences its test file cannot tell from chance."""
    for key, title in TITLES.items():
        mine = select(rows, task=key)
        if not mine:
            continue
        one = mine[0]
        mean = statistics.mean(row["accuracy"] for row in mine)
        apart = 100 * Z_95 * (2 * mean * (1 - mean) / one["test"]) ** 0.5
        lengths = f"{one['shortest']:,} to {one['longest']:,}" if one["shortest"] else f"at most {one['longest']:,}"
        yield (
            f"- {title}: {lengths} tokens, {one['train']:,} sequences to learn from, {one['test']:,} to test, "
            f"{one['steps']:,} steps of {one['batch']}, learning rate {one['learning_rate']:g}; "
            f"{statistics.median(row['train_cpu_s'] for row in mine):,.0f} s of CPU time a model (median). "
            f"Two models that are less than {apart:.1f} points apart may differ by the draw of the test file alone."
        )


def long_range_arena() -> str:
    """Everything, and where it was measured."""
    path = RESULTS / "long_range_arena.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.papers.long_range_arena` measures it."
    result = read(path)
    rows = sorted(result["rows"], key=lambda row: (place(row), row["seed"]))
    parts = [
        f"Trained on an {result['machine']['processor']}, {result['threads']} thread, torch "
        f"{result['versions']['torch']}, {commit(*rows)}, by `{result['command']}`."
    ]
    for size in dict.fromkeys(row["size"] for row in rows):
        mine = select(rows, size=size)
        parts += [f"### Size `{size}`", "\n".join(said_of(mine))]
        parts += ["Accuracy in percent, mean ± standard deviation over seeds (number of seeds):", accuracies(mine)]
    return "\n\n".join(parts)
