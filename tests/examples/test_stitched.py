"""The long documents that `reviews-long` is measured and calibrated on."""

from __future__ import annotations

import random

import pytest
from common import stitched
from common.text import Document, Task, encode, train_tokenizer

LABELS = ["negative", "positive"]


def reviews(name: str, count: int) -> list[Document]:
    """Reviews that differ in their first word, of 4 to 23 words."""
    return [
        Document(f"{name}{row}", f"{name}{row} the film" + " is" * (1 + row % 20), (row // 20 % 2,))
        for row in range(count)
    ]


def test_what_chose_the_weights_and_copies_of_what_they_learnt_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stitched, "TO_ADAPT", 10)
    monkeypatch.setattr(stitched, "WATCHED", 30)
    train, held_out, own = reviews("train", 40), reviews("held", 5), reviews("test", 100)
    copies = [Document("copy", each.text, each.labels) for each in (train[3], held_out[2], own[0])]
    task = Task(train, held_out, [*own, *copies], LABELS)
    draw = random.Random(stitched.SEED)
    draw.sample(task.train, 10)
    watched = {row.text for row in draw.sample(task.test, 30)}
    texts = [row.text for row in stitched.unseen(task)]
    assert len(texts) == len(set(texts))
    assert set(texts) == {row.text for row in own} - watched


def test_no_review_is_in_two_documents_and_the_label_is_that_of_most() -> None:
    rows = reviews("review", 400)
    tokenizer = train_tokenizer([row.text for row in rows], 120)
    pool = [[row for row in rows if row.labels[0] == label] for label in (0, 1)]
    documents = list(stitched.stitched(pool, tokenizer, 60, 20))
    used = [part.id for parts, _ in documents for part in parts]
    assert len(used) == len(set(used)) > 20
    assert {row.id for rest in pool for row in rest}.isdisjoint(used)
    assert {label for _, label in documents} == {0, 1}
    for parts, label in documents:
        text = Document("all", "\n\n".join(part.text for part in parts), (label,))
        assert len(parts) == 1 or len(encode(tokenizer, [text], 1000)[0]) <= 60
        assert sum(part.labels[0] == label for part in parts) > len(parts) / 2


def test_a_review_longer_than_the_document_stands_alone() -> None:
    pool = [reviews("long", 8), reviews("other", 8)]
    tokenizer = train_tokenizer([row.text for row in pool[0]], 60)
    documents = list(stitched.stitched(pool, tokenizer, 3, 2))
    assert [len(parts) for parts, _ in documents] == [1, 1]
