"""Four tasks of GLUE: files in their published form, scores, and small classifiers to begin with.

A folder has `sst2`, `mrpc`, `rte` and `cola`, each with `train.tsv` and `dev.tsv`.
"""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.train_classifier import Text, fresh

Labels = np.ndarray[Any, np.dtype[np.int64]]
TOKENS = 128  # of a text at most, and what the MCA paper pads every text to


class Task(NamedTuple):
    """Where a task's texts stand in a line of its files.

    Attributes:
        title: in tables.
        texts: columns of the text, or of both.
        label: column of the label.
        header: whether the first line names the columns.
        names: labels in the order of the logits, as the files have them.
        metrics: what its scores are.
    """

    title: str
    texts: tuple[int, ...]
    label: int
    header: bool
    names: tuple[str, ...]
    metrics: tuple[str, ...]


TASKS = {
    "sst2": Task("SST-2", (0,), 1, True, ("0", "1"), ("acc",)),
    "mrpc": Task("MRPC", (3, 4), 0, True, ("0", "1"), ("acc", "f1")),
    "rte": Task("RTE", (1, 2), 3, True, ("not_entailment", "entailment"), ("acc",)),
    "cola": Task("CoLA", (3,), 1, False, ("0", "1"), ("matthews",)),
}


def read(data: Path, key: str, split: str) -> list[dict[str, Any]]:
    """The texts of a task, each with `text`, `text_pair` where it is a pair, and `label`, its place among the names."""
    task = TASKS[key]
    with (data / key / f"{split}.tsv").open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[int(task.header) :]
    rows = []
    for line in lines:
        texts = dict(zip(("text", "text_pair"), (line[column].strip() for column in task.texts), strict=False))
        rows.append({**texts, "label": task.names.index(line[task.label])})
    return rows


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def begin(rows: list[dict[str, Any]], key: str, layers: int, folder: Path) -> None:
    """Writes an untrained classifier of so many layers, its vocabulary the task's own, and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [Text(" ".join(row[name] for name in ("text", "text_pair") if name in row), row["label"]) for row in rows]
    torch.manual_seed(0)
    model, tokenizer = fresh(texts, TASKS[key].names, folder)
    model.bert.encoder.layer = model.bert.encoder.layer[:layers]
    embeddings = model.bert.embeddings
    positions = nn.Embedding(TOKENS, model.config.hidden_size)
    positions.weight.data.copy_(embeddings.position_embeddings.weight[:TOKENS])
    embeddings.position_embeddings = positions
    model.config.update({"num_hidden_layers": layers, "max_position_embeddings": TOKENS})
    tokenizer.model_max_length = TOKENS
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
