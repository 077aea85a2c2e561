"""A small classifier that was trained: whether one word occurs more often than another hangs on many tokens."""

import random
from pathlib import Path

import numpy as np
from checkpoints import Checkpoint, bert, save

from attenuator.tuning import checkpoints, data
from attenuator.tuning.batches import Rows
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import run

LEARNT = 400


def counted(texts: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts whose label hangs on many of their words: whether one occurs more often than another."""
    draw = random.Random(seed)
    rows = []
    for _ in range(texts):
        words = [draw.choice(["good", "bad", "film", "the", "plot", "is"]) for _ in range(draw.randint(9, 20))]
        rows.append((" ".join(words), int(words.count("good") > words.count("bad"))))
    return rows


def trained(folder: Path) -> Path:
    """A classifier of three layers that softmax attention has taught to count; its folder, within the given one."""
    drawn = save(Checkpoint(bert(num_hidden_layers=3)), folder / "drawn") / "config.json"
    model = checkpoints.load(drawn, "softmax", labels=["less", "more"], task="single_label", seed=3)
    texts = [data.Text("", {"text": text}) for text, _ in counted(LEARNT)]
    rows = Rows(data.encode(texts, model.texts, truncate=False), np.array([label for _, label in counted(LEARNT)]))
    run(model.model, model.collator, rows, None, Plan(folder / "steps", epochs=8, learning_rate=3e-3, batch_tokens=512))
    model.save(folder / "trained")
    return folder / "trained"
