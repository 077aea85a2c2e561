"""Texts longer than a checkpoint's positions: cut, or read with a longer table (`export --positions`), untrained.

    python -m benchmarks.long_positions checkpoints/topics4-long --texts checkpoints/topics4-long/test.jsonl

The PyTorch model classifies the texts (JSON lines with `text` and `label`) that have more tokens than it has positions:
cut at those positions as `truncate` cuts them, then with twice and four times as many, made in each way. Prints a table
in Markdown: accuracy with its 95 % interval, and the share of answers that are those of the cut texts.
"""

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attenuator.bundle import TRAINED_POSITIONS
from attenuator.export.longer import POSITIONS, lengthen
from attenuator.export.source import Source, load
from benchmarks.contenders import documents
from benchmarks.measure.intervals import share
from benchmarks.report.tables import table

TIMES = (2, 4)


def cut(ids: list[int], tokens: int) -> torch.Tensor:
    """A text's token ids with at most so many of them, the last one as the tokenizer wrote it: int64 `[1, n]`."""
    return torch.tensor([ids if len(ids) <= tokens else [*ids[: tokens - 1], ids[-1]]])


@torch.inference_mode()
def answers(source: Source, texts: list[list[int]]) -> Any:
    """The label of every text, int64 `[texts]`."""
    model: Any = source.model
    return np.array([int(model(input_ids=cut(ids, source.max_tokens)).logits.argmax()) for ids in texts])


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="of a family with a learned table of positions")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=250, help="longer than the positions, which are classified")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    source = load(options.checkpoint)
    tokenizer = copy.deepcopy(source.tokenizer.plain)
    tokenizer.no_truncation()
    rows = [(tokenizer.encode(row["text"]).ids, row["label"]) for row in documents.read(options.texts)]
    rows = [(ids, label) for ids, label in rows if len(ids) > source.max_tokens][: options.documents]
    texts, labels = [ids for ids, _ in rows], np.array([source.labels.index(label) for _, label in rows])
    print(f"{len(rows)} texts of {np.mean([len(ids) for ids in texts]):,.0f} tokens in the mean\n")
    first = answers(source, texts)
    lines = [line(f"cut at {source.max_tokens}", first, labels, first)]
    for positions in POSITIONS:
        for times in TIMES if positions != TRAINED_POSITIONS else ():
            longer = load(options.checkpoint)
            lengthen(longer, positions, times * source.max_tokens)
            lines.append(line(f"{positions}, {longer.max_tokens}", answers(longer, texts), labels, first))
    print(table(["positions", "accuracy", "as the cut texts"], lines))
    return 0


def line(name: str, predicted: Any, labels: Any, first: Any) -> list[str]:
    """A row of the table."""
    right = share(predicted == labels)
    accuracy = f"{right['share']:.3f} ({right['low']:.3f} to {right['high']:.3f})"
    return [name, accuracy, f"{np.mean(predicted == first):.3f}"]


if __name__ == "__main__":
    sys.exit(main())
