"""Texts that a tiny model learns in seconds: what a text is about is one word of it."""

import json
import random
from pathlib import Path

WORDS = ["the", "a", "film", "plot", "so", "is", "it", "that", "quick", "brown", "fox", "lazy", "dog"]
LABELS = ["negative", "positive"]
SIGNS = {"negative": "bad", "positive": "good"}


def lines(texts: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts of 4 to 21 words with their labels, half of them each."""
    draw = random.Random(seed)
    rows = []
    for index in range(texts):
        label = LABELS[index % 2]
        words = draw.choices(WORDS, k=draw.randint(3, 20))
        words.insert(draw.randrange(len(words)), SIGNS[label])
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write(path: Path, texts: int, seed: int = 0) -> Path:
    """Such texts as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in lines(texts, seed)))
    return path
