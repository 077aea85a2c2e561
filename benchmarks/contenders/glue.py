"""Labelled texts in their published form, and scores: four tasks of GLUE, and two of long documents.

A folder has `sst2`, `mrpc`, `rte` and `cola`, each with `train.tsv` and `dev.tsv`; `imdb` with `train.jsonl.gz` and
`test.jsonl.gz`, `hyperpartisan` with `byarticle.jsonl.gz`, whose lines have `text` and `label`.
"""

import csv
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Labels = np.ndarray[Any, np.dtype[np.int64]]
EVERY = 5  # document of a file without a split is for testing


class Task(NamedTuple):
    """Where a task's texts stand in a line of its files.

    Attributes:
        texts: columns of the text, or of both; none in a file of JSON lines.
        label: column of the label.
        header: whether the first line names the columns.
        names: labels in the order of the logits, as the files have them.
        tokens: of a text at most, and what it is padded to where padding counts.
        tables: of the MCA paper that have it.
    """

    texts: tuple[int, ...]
    label: int
    header: bool
    names: tuple[str, ...]
    tokens: int = 128
    tables: tuple[str, ...] = ("1", "2")


TASKS = {
    "sst2": Task((0,), 1, True, ("0", "1")),
    "mrpc": Task((3, 4), 0, True, ("0", "1")),
    "rte": Task((1, 2), 3, True, ("not_entailment", "entailment")),
    "cola": Task((3,), 1, False, ("0", "1")),
    "hyperpartisan": Task((), 0, False, ("0", "1"), 2048, ("3",)),
    "imdb": Task((), 0, False, ("0", "1"), 2048, ("3",)),
}
# The file that tells whether a task is there.
FILES = dict.fromkeys(TASKS, "dev.tsv") | {"hyperpartisan": "byarticle.jsonl.gz", "imdb": "test.jsonl.gz"}


def present(data: Path) -> list[str]:
    """The tasks that a folder has."""
    return [key for key in TASKS if (data / key / FILES[key]).is_file()]


def read(data: Path, key: str, split: str) -> list[dict[str, Any]]:
    """The texts of a task, each with `text`, `text_pair` where it is a pair, and `label`, its place among the names.

    Args:
        data: the folder.
        key: of the task.
        split: `train` or `dev`.
    """
    task = TASKS[key]
    if not task.texts:
        return documents(data / key, key, split)
    with (data / key / f"{split}.tsv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[int(task.header) :]
    rows = []
    for line in lines:
        texts = dict(zip(("text", "text_pair"), (line[column].strip() for column in task.texts), strict=False))
        rows.append({**texts, "label": task.names.index(line[task.label])})
    return rows


def documents(folder: Path, key: str, split: str) -> list[dict[str, Any]]:
    """Long documents in an order of their own, for such files are sorted by label; every fifth is tested on."""
    name = FILES[key] if key == "hyperpartisan" or split == "dev" else "train.jsonl.gz"
    with gzip.open(folder / name, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    order = np.random.default_rng(0).permutation(len(rows))
    chosen = [rows[place] for place in order]
    if key == "hyperpartisan":
        chosen = [row for place, row in enumerate(chosen) if (place % EVERY == 0) == (split == "dev")]
    return [{"text": row["text"].replace("<br />", " "), "label": int(row["label"])} for row in chosen]


def accuracy(given: Labels, true: Labels) -> float:
    """Share of right answers."""
    return float((given == true).mean())


def f1(given: Labels, true: Labels) -> float:
    """Of label 1; 0 where nothing is right."""
    right = float(((given == 1) & (true == 1)).sum())
    return 2 * right / max(float((given == 1).sum() + (true == 1).sum()), 1.0)


def matthews(given: Labels, true: Labels) -> float:
    """Matthews' correlation; 0 where either is constant."""
    spread = given.std() * true.std()
    return float(((given - given.mean()) * (true - true.mean())).mean() / spread) if spread else 0.0


METRICS: Mapping[str, Callable[[Labels, Labels], float]] = {"acc": accuracy, "f1": f1, "matthews": matthews}
