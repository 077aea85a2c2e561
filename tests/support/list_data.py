"""Lists of a query and its documents, and tiny rerankers that order them."""

import json
import random
from pathlib import Path
from typing import Any

import tiny


def text(draw: random.Random, fewest: int, most: int) -> str:
    return " ".join(draw.choices(tiny.WORDS, k=draw.randint(fewest, most)))


def some_lists(count: int = 16) -> list[dict[str, Any]]:
    """Lists of 2 to 14 documents; a document in each stands there twice, so that its scores are equal."""
    draw = random.Random(7)
    records = []
    for number in range(count):
        documents: list[Any] = [text(draw, 3, 30) for _ in range(1 + number % 13)]
        documents.append(documents[0] if number else {"text": documents[0]})
        relevant = draw.sample(range(len(documents)), k=number % 3 if number % 3 < len(documents) else 0)
        records.append({"query": text(draw, 1, 5), "documents": documents, "relevant": relevant})
    return records


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def ranker(folder: Path, seed: int, **changes: Any) -> Path:
    tiny.write(folder, "keep", labels=("relevance",), seed=seed)
    tiny.sign(folder, **{"task": "regression", "max_tokens": 64} | changes)
    return folder
