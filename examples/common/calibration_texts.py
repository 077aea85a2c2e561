"""Write texts that a bundled model was not trained on, as `attenuator calibrate` reads them.

`python examples/common/calibration_texts.py --task imdb --data IMDB_FOLDER --limit 5000 --output imdb-test.jsonl`

* imdb: the official test split, evenly spread where there is a limit.
* cuad: the test contracts. Callers may send whole contracts or parts, so each contract is there whole and in pieces of
  fewer words, cut out at places drawn by lot. The labels are those of whole contracts, so they are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import TASKS, Task

PIECE_WORDS = (300, 1000)
LONG_WORDS = 420  # about 512 tokens
SEED = 0


def records(task: Task) -> Iterator[dict[str, Any]]:
    """The lines of the file."""
    for document in task.test:
        if not task.multi_label:
            yield {"text": document.text, "label": task.labels[document.labels[0]]}
    if task.multi_label:
        draw = random.Random(SEED)
        yield from ({"text": text} for document in task.test for text in pieces(document.text, draw))


def pieces(text: str, draw: random.Random) -> Iterator[str]:
    """The whole text, and a piece of each size that is less than half of it."""
    words = text.split(" ")
    yield text
    for size in PIECE_WORDS:
        if 2 * size < len(words):
            start = draw.randrange(len(words) - size)
            yield " ".join(words[start : start + size])


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--limit", type=int, help="write only that many texts, evenly spread")
    parser.add_argument(
        "--add-long", type=int, default=0, help=f"so many more of those left out that have {LONG_WORDS} words or more"
    )
    parser.add_argument("--output", type=Path, required=True, help="file of JSON lines to write")
    options = parser.parse_args()
    rows = list(records(TASKS[options.task](options.data)))
    if options.limit and options.limit < len(rows):
        chosen = [len(rows) * index // options.limit for index in range(options.limit)]
        rest = sorted(set(range(len(rows))) - set(chosen))
        long = [place for place in rest if len(rows[place]["text"].split()) >= LONG_WORDS]
        step = max(1, len(long) // max(1, options.add_long))
        rows = [rows[place] for place in [*chosen, *long[::step][: options.add_long]]]
    options.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} texts in {options.output}")


if __name__ == "__main__":
    main()
