"""Train the `reviews-mca` model: IMDb sentiment with softmax attention, exported with MCA's value projection.

`python examples/reviews-mca/train.py --data IMDB_FOLDER --output CHECKPOINT_FOLDER [--bundle BUNDLE]`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import parse, write_bundle
from common.recipe import Recipe
from common.reviews import DATA, LICENCE, train_reviews
from common.text import imdb

RECIPE = Recipe(epochs=3, schedule_epochs=6, crop_lengths=(128, 256, 256, 512), word_dropout=0.15)
CONFIG: dict[str, float | int | str] = {"vocab_size": 10_000, "dropout": 0.2}

if __name__ == "__main__":
    arguments = parse(__doc__, RECIPE)
    train_reviews(arguments, "softmax", CONFIG)
    held_out = [document.text for document in imdb(arguments.data).held_out]
    write_bundle(arguments, "mca", DATA, LICENCE, knob_default={"alpha": 0.5}, texts=held_out)
