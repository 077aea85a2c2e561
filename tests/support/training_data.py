"""Texts that a tiny model learns in a few steps: many of their words are one of two."""

import json
import random
from pathlib import Path

WORDS = ["the", "a", "film", "plot", "so", "is", "it", "that", "quick", "brown", "fox", "lazy", "dog"]
LABELS = ["negative", "positive"]
SIGNS = {"negative": "bad", "positive": "good"}


def lines(texts: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts of 4 to 12 words, two of five the sign of their label, which alternates."""
    draw = random.Random(seed)
    rows = []
    for index in range(texts):
        label = LABELS[index % 2]
        words = [SIGNS[label] if draw.random() < 0.4 else draw.choice(WORDS) for _ in range(draw.randint(3, 11))]
        words.insert(draw.randrange(len(words)), SIGNS[label])
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write(path: Path, texts: int, seed: int = 0) -> Path:
    """Such texts as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in lines(texts, seed)))
    return path
