"""Train the softmax teacher of the `reviews-long` model; `attenuator adapt` makes the model of it, see README.md.

`python examples/reviews-long/train.py --data IMDB_FOLDER --output CHECKPOINT_FOLDER`

Beside the checkpoint it writes what the next commands read: `unlabelled.jsonl`, reviews to adapt with,
`held-out.jsonl`, others to watch it by. `examples/common/stitched.py` writes the texts to measure and calibrate on.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import parse
from common.recipe import Recipe
from common.reviews import train_reviews
from common.stitched import write
from common.text import imdb

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


def main() -> None:
    """Train, and write the files."""
    arguments = parse(__doc__, RECIPE)
    train_reviews(arguments, "softmax", CONFIG)
    task, output = imdb(arguments.data), arguments.output
    draw = random.Random(0)
    write(output / "unlabelled.jsonl", ({"text": row.text} for row in draw.sample(task.train, UNLABELLED)))
    held_out = draw.sample(task.held_out, HELD_OUT)
    write(output / "held-out.jsonl", ({"text": row.text, "label": task.labels[row.labels[0]]} for row in held_out))


if __name__ == "__main__":
    main()
