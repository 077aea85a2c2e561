"""Three tasks of Long Range Arena as sequences of small numbers with labels, at a size, kept in a folder once made."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.papers.lra import listops, pathfinder

SPLITS = {"train": 0, "test": 1}  # and the seeds of their drawing
PART = 500  # sequences of a file while a task is drawn
Pair = tuple[NDArray[np.uint8], int]


@dataclass(frozen=True)
class Size:
    """How much of a task, and how long its models learn.

    Attributes:
        shortest: tokens that a drawn sequence has more of.
        longest: tokens at most.
        train: sequences to learn from.
        test: sequences that accuracy is of.
        steps: of training.
        warmup: steps in which the learning rate rises.
        batch: sequences of a step.
        learning_rate: at its highest.
    """

    shortest: int
    longest: int
    train: int
    test: int
    steps: int
    warmup: int
    batch: int = 32
    learning_rate: float = 1e-4


class Examples(NamedTuple):
    """Sequences end to end.

    Attributes:
        tokens: uint8 `[T]`.
        starts: int64 `[N+1]`.
        labels: int64 `[N]`.
    """

    tokens: NDArray[np.uint8]
    starts: NDArray[np.int64]
    labels: NDArray[np.int64]


def draw_listops(size: Size, split: str, first: int) -> Iterator[Pair]:
    """Expressions as tokens, from one on; those of the test file are none of the training file's."""
    ids = {token: number for number, token in enumerate(listops.TOKENS)}
    skipped = size.train if split == "test" else 0
    stream = listops.expressions(0, size.shortest, size.longest)
    for made in islice(stream, skipped + first, None):
        yield np.array([ids[token] for token in made.tokens], np.uint8), made.value


def draw_pathfinder(size: Size, split: str, first: int) -> Iterator[Pair]:
    """Images as grey values, from one on; labels in turns."""
    for number in count(first):
        label = 1 - number % 2
        draw = np.random.default_rng([SPLITS[split], size.longest, number])
        yield pathfinder.pixels(pathfinder.scene(draw, label)), label


def read_text(data: Path, size: Size, split: str) -> Iterator[Pair]:
    """Reviews as the first bytes of their UTF-8, in random order: such files are sorted by label."""
    with gzip.open(data / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    for place in np.random.default_rng(SPLITS[split]).permutation(len(rows)):
        text = rows[place]["text"].encode()[: size.longest]
        yield np.frombuffer(text, np.uint8), int(rows[place]["label"])


class Task(NamedTuple):
    """A task.

    Attributes:
        title: in tables, as the papers have it.
        vocabulary: different tokens.
        labels: different labels.
        draw: makes sequences of a size and a split, from one on; None where they are read from a folder of the user's.
    """

    title: str
    vocabulary: int
    labels: int
    draw: Callable[[Size, str, int], Iterator[Pair]] | None


TASKS = {
    "listops": Task("ListOps", len(listops.TOKENS), listops.LABELS, draw_listops),
    "text": Task("Text", 256, 2, None),
    "pathfinder": Task("Pathfinder", 256, 2, draw_pathfinder),
}
PIXELS = pathfinder.SIDE**2
# "lra": lengths and recipe of the YOSO paper's appendix (table 4), numbers of sequences of the published data.
SIZES: dict[str, dict[str, Size]] = {
    "lra": {
        "listops": Size(500, 2000, 96_000, 2000, steps=5000, warmup=1000),
        "text": Size(0, 4096, 25_000, 25_000, steps=20_000, warmup=8000),
        "pathfinder": Size(PIXELS, PIXELS, 160_000, 20_000, steps=62_400, warmup=312, batch=256),
    },
    # Tasks that a model of this shape can begin to learn in minutes: enough to tell attentions apart at this size.
    "medium": {
        "listops": Size(50, 200, 16_000, 2000, steps=1000, warmup=100, batch=16, learning_rate=1e-3),
        "text": Size(0, 512, 8000, 2000, steps=600, warmup=60, batch=16, learning_rate=1e-3),
        "pathfinder": Size(PIXELS, PIXELS, 8000, 1000, steps=1000, warmup=100, batch=8, learning_rate=1e-3),
    },
    "small": {
        "listops": Size(50, 200, 4000, 1000, steps=150, warmup=15, batch=16, learning_rate=1e-3),
        "text": Size(0, 256, 4000, 1000, steps=100, warmup=10, batch=16, learning_rate=1e-3),
        "pathfinder": Size(PIXELS, PIXELS, 1000, 500, steps=60, warmup=6, batch=8, learning_rate=1e-3),
    },
}


def examples(key: str, size: Size, split: str, *, data: Path | None, work: Path) -> Examples:
    """A task's sequences, from the folder where an earlier call has left them.

    Args:
        key: of the task.
        size: how many, and how long.
        split: train or test.
        data: folder with `train.jsonl.gz` and `test.jsonl.gz` for a task that is read.
        work: folder for what is drawn.

    Raises:
        ValueError: the task is read and there is no folder, or too few texts in it.
    """
    number = size.train if split == "train" else size.test
    if TASKS[key].draw is None:
        if data is None:
            raise ValueError(f"{key} is read from --data, which is missing")
        return _packed(key, list(islice(read_text(data, size, split), number)), number)
    of_data = {name: asdict(size)[name] for name in ("shortest", "longest", "train", "test")}
    file = work / ("-".join([key, split, *map(str, of_data.values())]) + ".npz")
    if not file.is_file():
        parts = file.with_suffix("")
        _save(file, _drawn(key, size, split, number, parts))
        shutil.rmtree(parts)
    return _read(file)


def _drawn(key: str, size: Size, split: str, number: int, folder: Path) -> Examples:
    """Sequences, with a bar; those that are in the folder from a drawing that was stopped are not drawn again."""
    draw = TASKS[key].draw
    assert draw is not None
    folder.mkdir(parents=True, exist_ok=True)
    sequences: Iterator[Pair] | None = None
    with tqdm(total=number, desc=f"drawing {key}, {split}", unit=" sequences", delay=2, file=sys.stderr) as bar:
        files = [folder / f"{first}.npz" for first in range(0, number, PART)]
        for first, file in zip(range(0, number, PART), files, strict=True):
            length = min(PART, number - first)
            if file.is_file():
                bar.update(length)
                continue
            sequences = sequences or draw(size, split, first)
            pairs = []
            for pair in islice(sequences, length):
                pairs.append(pair)
                bar.update()
            _save(file, _packed(key, pairs, length))
    parts = [_read(file) for file in files]
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    tokens, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "labels"))
    return Examples(tokens, np.cumsum([0, *lengths]), labels)


def _save(file: Path, made: Examples) -> None:
    staging = file.with_suffix(".new.npz")
    np.savez_compressed(staging, **made._asdict())
    staging.replace(file)


def _read(file: Path) -> Examples:
    with np.load(file) as kept:
        return Examples(**{name: kept[name] for name in Examples._fields})


def _packed(key: str, pairs: list[Pair], length: int) -> Examples:
    if len(pairs) < length:
        raise ValueError(f"{key} has {len(pairs)} texts where this size takes {length}")
    starts = np.cumsum([0, *(len(tokens) for tokens, _ in pairs)])
    return Examples(np.concatenate([tokens for tokens, _ in pairs]), starts, np.array([label for _, label in pairs]))
