"""Texts longer than a checkpoint's positions, after `attenuator adapt`: cut, or read with a longer table.

    python -m benchmarks.adapted_positions CHECKPOINT --texts TEST.jsonl --learn UNLABELLED.jsonl --output FOLDER

Adapts the checkpoint once for each way to read long texts (`adapt --positions`), and measures on the texts of TEST
(JSON lines with `text` and `label`) that have more tokens than it has positions. Prints a table in Markdown: accuracy
of the softmax model and of the adapted one, each reading texts that way, and the agreement of the two, with 95 %
intervals. FOLDER keeps the adapted checkpoints: the same command goes on with a run that was stopped, and does not
repeat one that is finished.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from attenuator.bundle import TRAINED_POSITIONS
from attenuator.calibration.proportions import wilson
from attenuator.export.longer import POSITIONS
from attenuator.export.source import load
from attenuator.tuning.adapt.__main__ import main as adapt
from attenuator.tuning.figures import CONFIDENCE
from attenuator.tuning.output import RECORD
from benchmarks.contenders import documents
from benchmarks.report.tables import table

HEAD = ["read", "softmax, accuracy", "adapted, accuracy", "agreement before", "agreement after"]


def long_texts(checkpoint: str, texts: Path, most: int, output: Path) -> tuple[Path, int]:
    """Writes the texts that are longer than the checkpoint's positions.

    Args:
        checkpoint: folder with its tokenizer.
        texts: JSON lines with `text` and `label`.
        most: how many to write.
        output: folder to write to.

    Returns:
        The file, and the number of positions.
    """
    source = load(checkpoint)
    tokenizer = copy.deepcopy(source.tokenizer.plain)
    tokenizer.no_truncation()
    rows = (row for row in documents.read(texts) if len(tokenizer.encode(row["text"]).ids) > source.max_tokens)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "held-out.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in islice(rows, most)), encoding="utf-8")
    return file, source.max_tokens


def adapted(folder: Path, checkpoint: str, options: list[str]) -> dict[str, Any]:
    """The record of a run of `adapt` into a folder, which is begun, gone on with, or was finished before.

    Raises:
        SystemExit: it was interrupted.
    """
    record = folder / RECORD
    if not record.exists() or not json.loads(record.read_bytes())["finished"]:
        resume = ["--resume"] if record.exists() else []
        if code := adapt([checkpoint, *options, "--output", str(folder), *resume]):
            sys.exit(code)
    done: dict[str, Any] = json.loads(record.read_bytes())
    return done


def share(value: float, texts: int) -> str:
    """A share of the texts with its interval."""
    low, high = wilson(round(value * texts), texts, CONFIDENCE)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def line(name: str, record: dict[str, Any], texts: int) -> list[str]:
    """A row of the table: the figures at the number of hashes that the checkpoint is to be served with."""
    value = record["settings"]["num_hashes"]
    before, after = (next(row for row in record[part] if row["value"] == value) for part in ("before", "after"))
    accuracies = [share(record["accuracy_of_teacher"], texts), share(after["accuracy"], texts)]
    return [name, *accuracies, f"{before['agreement']:.3f}", share(after["agreement"], texts)]


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a softmax classifier of a family with a learned table of positions")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with `text` and `label`, to measure on")
    parser.add_argument(
        "--learn", type=Path, required=True, help="texts to adapt with, as `attenuator adapt` reads them"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--max-tokens", type=int, default=512, help="longest text where it is not cut (%(default)s)")
    parser.add_argument("--documents", type=int, default=1000, help="texts to measure on at most (%(default)s)")
    parser.add_argument("--adapt", nargs=argparse.REMAINDER, default=[], help="flags of `attenuator adapt`, last")
    options = parser.parse_args(arguments)
    file, trained = long_texts(options.checkpoint, options.texts, options.documents, options.output)
    texts = len(file.read_text(encoding="utf-8").splitlines())
    shared = ["--data", str(options.learn), "--held-out", str(file), "--truncate", *options.adapt]
    lines = []
    for positions in POSITIONS:
        is_cut = positions == TRAINED_POSITIONS
        longer = [] if is_cut else ["--positions", positions, "--max-tokens", str(options.max_tokens)]
        record = adapted(options.output / positions, options.checkpoint, [*shared, *longer])
        name = f"cut at {trained}" if is_cut else f"{positions}, {options.max_tokens}"
        lines.append(line(name, record, texts))
    print(f"\n{texts} texts of more than {trained} tokens\n")
    print(table(HEAD, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
