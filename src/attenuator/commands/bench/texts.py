"""The texts that `attenuator bench` asks about."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from attenuator.errors import InvalidRequest
from attenuator.rows import TEXT, Columns, Format, file_rows, format_of

SENTENCES = (
    "The film takes its time, and every minute of it is worth the wait.",
    "Nobody in this story behaves like a person, least of all its hero.",
    "I ordered it for my brother, who has not put it down since.",
    "Either party may terminate this agreement by notice in writing of thirty days.",
    "It arrived late, the box was open, and a part was missing.",
    "Not a masterpiece, but far better than its trailer made me fear.",
    "The supplier shall hold all records for audit during normal business hours.",
    "Great sound, a battery that lasts, and a case that feels like a toy.",
    "The second half drags, then ends just as it gets interesting.",
    "This licence is granted for the term of the agreement and is not transferable.",
)
MEDIAN_SENTENCES, SPREAD, MOST_SENTENCES = 4.0, 1.0, 60


def built_in(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Texts without end, whose lengths have a long tail."""
    draw = random.Random(seed)
    while True:
        count = min(MOST_SENTENCES, 1 + int(MEDIAN_SENTENCES * draw.lognormvariate(0.0, SPREAD)))
        yield {TEXT: " ".join(draw.choices(SENTENCES, k=count))}


def read_texts(file: str | None, kind: Format | None, column: str | None, count: int) -> list[dict[str, Any]]:
    """The first texts of a file, or built-in ones.

    Args:
        file: to read; None for the built-in texts.
        kind: its format; None tells it by its name.
        column: that holds the text.
        count: how many at most.

    Returns:
        Inputs as the HTTP API takes them.

    Raises:
        InvalidRequest: the file cannot be read, has no text, or a row of it is wrong.
    """
    if file is None:
        return list(islice(built_in(), count))
    texts = []
    for row in islice(file_rows(file, format_of(file, kind), Columns(column)), count):
        if row.content is None:
            raise InvalidRequest(row.error)
        texts.append(row.content)
    if not texts:
        raise InvalidRequest(f"{file} has no text")
    return texts
