"""Train the softmax teacher of the `reviews-long` model; `attenuator adapt` makes the model of it, see README.md.

`python examples/reviews-long/train.py --data IMDB_FOLDER --output CHECKPOINT_FOLDER`

Beside the checkpoint it writes what the next commands read: `unlabelled.jsonl`, reviews to adapt with,
`held-out.jsonl`, others to watch it by, `stitched-4096.jsonl` and `stitched-16384.jsonl`, long documents to measure on.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import parse
from common.reviews import train_reviews
from common.text import Document, Task, encode, imdb
from common.training import Recipe
from tokenizers import Tokenizer

MAX_TOKENS = 16_384
RECIPE = Recipe(
    epochs=2, schedule_epochs=6, crop_lengths=(128, 256, 256, 512), word_dropout=0.15, reduced_precision=True
)
CONFIG: dict[str, float | int | str] = {
    "vocab_size": 10_000,
    "num_hidden_layers": 4,
    "dropout": 0.2,
    "max_tokens": MAX_TOKENS,
}
UNLABELLED, HELD_OUT = 2000, 1000
STITCHED = {4096: 200, 16_384: 100}


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def stitched(task: Task, tokenizer: Tokenizer, tokens: int, count: int) -> Iterable[dict[str, Any]]:
    """Documents of at most so many tokens, of test reviews one after the other; the label is that of most of them.

    About two of three reviews have it, so a reader of the first page alone would often be wrong.
    """
    draw = random.Random(tokens)
    by_label = [[row for row in task.test if row.labels[0] == label] for label in (0, 1)]
    for index in range(count):
        parts: list[Document] = []
        filled = 0
        while True:
            label = index % 2 if draw.random() < 2 / 3 else 1 - index % 2
            review = draw.choice(by_label[label])
            filled += len(encode(tokenizer, [review], MAX_TOKENS)[0])
            if filled > tokens:
                break
            parts.append(review)
        if 2 * sum(part.labels[0] for part in parts) == len(parts):
            parts.pop()
        label = int(2 * sum(part.labels[0] for part in parts) > len(parts))
        yield {"text": "\n\n".join(part.text for part in parts), "label": task.labels[label]}


def main() -> None:
    """Train, and write the files."""
    arguments = parse(__doc__, RECIPE)
    train_reviews(arguments, "softmax", CONFIG)
    task, output = imdb(arguments.data), arguments.output
    draw = random.Random(0)
    write(output / "unlabelled.jsonl", ({"text": row.text} for row in draw.sample(task.train, UNLABELLED)))
    held_out = draw.sample(task.held_out, HELD_OUT)
    write(output / "held-out.jsonl", ({"text": row.text, "label": task.labels[row.labels[0]]} for row in held_out))
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    for tokens, count in STITCHED.items():
        write(output / f"stitched-{tokens}.jsonl", stitched(task, tokenizer, tokens, count))


if __name__ == "__main__":
    main()
