"""Train the `reviews-mca` model: IMDb sentiment with softmax attention, exported with MCA's value projection.

`python examples/reviews-mca/train.py --data IMDB_FOLDER --output CHECKPOINT_FOLDER`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import parse
from common.reviews import train_reviews
from common.training import Recipe

RECIPE = Recipe(epochs=4, crop_lengths=(128, 256), word_dropout=0.3, weight_decay=0.05)
CONFIG: dict[str, float | int | str] = {"vocab_size": 10_000, "dropout": 0.3}

if __name__ == "__main__":
    train_reviews(parse(__doc__, RECIPE), "softmax", CONFIG)
