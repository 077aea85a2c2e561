"""Train the `reviews` model: IMDb sentiment with YOSO-C attention, up to 4,096 tokens.

`python examples/reviews/train.py --data IMDB_FOLDER --output CHECKPOINT_FOLDER [--bundle BUNDLE]`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import parse, write_bundle
from common.recipe import Recipe
from common.reviews import DATA, LICENCE, train_reviews

RECIPE = Recipe(epochs=3, schedule_epochs=8, crop_lengths=(128, 256, 256, 512), word_dropout=0.15)
# Every second step hashes: the weights learn to stand the noise of few hashes.
HASHED = Recipe(
    epochs=1,
    learning_rate=3e-4,
    crop_lengths=(256, 512),
    word_dropout=0.25,
    sampled_from=0.0,
    seed=1,
)
CONFIG: dict[str, float | int | str] = {"vocab_size": 10_000, "conv_size": 5, "dropout": 0.2}

if __name__ == "__main__":
    arguments = parse(__doc__, RECIPE)
    train_reviews(arguments, "yoso", CONFIG, HASHED)
    write_bundle(arguments, "yoso", DATA, LICENCE, knob_default=64)
