"""What the training scripts of the bundled models share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from common.crops import Crops, collate, draw_crops, pack
from common.recipe import Recipe
from common.text import SPECIAL_TOKENS, Document, encode, hash_split, target_matrix, train_tokenizer
from common.training import document_logits, predict, train

from attenuator.export.encoder import Encoder, EncoderConfig

CONFIG = EncoderConfig(vocab_size=60, hidden_size=16, intermediate_size=16, dropout=0.0)


def documents(count: int) -> list[Document]:
    random = np.random.default_rng(0)
    kinds = [["bad", "dull", "awful"], ["good", "fine", "lovely"]]
    return [
        Document(str(row), "the film is " + " ".join(random.choice(kinds[row % 2], 5)), (row % 2,))
        for row in range(count)
    ]


def test_hash_split_depends_on_the_id_alone() -> None:
    rows = documents(400)
    kept, held_out = hash_split(rows, 20)
    assert 40 < len(held_out) < 120
    assert {row.id for row in hash_split(rows[::-1], 20)[1]} == {row.id for row in held_out}
    assert len(kept) + len(held_out) == 400


def test_tokenizer_numbers_pieces_in_order_and_marks_the_ends() -> None:
    texts = [row.text for row in documents(20)] + ["It does n't<br />work"]
    first = train_tokenizer(texts, 60)
    pieces = sorted(first.get_vocab(), key=first.get_vocab().__getitem__)
    assert pieces[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS
    assert pieces[len(SPECIAL_TOKENS) :] == sorted(pieces[len(SPECIAL_TOKENS) :])
    assert first.encode("does n't").ids == first.encode("don't".replace("don", "doesn")).ids
    pair = first.encode("good", "bad")
    assert [pair.tokens[0], pair.tokens[-1]] == ["[CLS]", "[SEP]"]
    assert sorted(set(pair.type_ids)) == [0, 1]


def test_cut_documents_keep_their_closing_token() -> None:
    tokenizer = train_tokenizer([row.text for row in documents(20)], 60)
    [ids] = encode(tokenizer, documents(1), 4)
    assert len(ids) == 4
    assert ids[-1] == tokenizer.token_to_id("[SEP]")


def test_crops_are_disjoint_pieces_of_the_document() -> None:
    ids = np.arange(1000)
    recipe = Recipe(crop_lengths=(64,), tokens_per_document=512)
    crops = draw_crops(ids, recipe, np.random.default_rng(0))
    assert 1 < len(crops) <= 8
    assert all(np.array_equal(crop, ids[start : start + len(crop)]) for crop, start in crops)
    tokens = np.concatenate([crop for crop, _ in crops])
    assert len(set(tokens)) == len(tokens)


def test_batches_hold_every_document_once_and_about_as_many_tokens() -> None:
    """In each epoch others, and as many; a document of more tokens than a batch has is one by itself."""
    rows = [np.full(length, 5) for length in range(1, 60)]
    crops = Crops(rows, np.arange(59, dtype=np.float32)[:, None], Recipe(crop_lengths=(64,)))
    batches = crops.batches(128, 3)
    groupings = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        drawn = [collate([crops[row] for row in batch]) for batch in batches]
        assert len(drawn) == len(batches) == round(sum(range(1, 60)) / 128)
        assert sorted(float(value) for batch in drawn for value in batch["labels"][:, 0]) == list(range(59))
        assert max(len(batch["input_ids"]) for batch in drawn) <= 128 + 59
        groupings.append([len(batch["labels"]) for batch in drawn])
    assert groupings[0] != groupings[1]
    assert [len(batch) for batch in Crops(rows[-3:], crops.targets[-3:], crops.recipe).batches(40)] == [1, 1, 1]


def test_pooled_crops_are_averaged_by_their_tokens() -> None:
    """Without attention across the cut, two crops of a document give the document's mean."""
    torch.manual_seed(0)
    model = Encoder(replace(CONFIG, num_hidden_layers=0)).eval()
    ids = np.arange(5, 35)
    whole = document_logits(model, pack([(ids, 0, 0)], np.zeros((1, 2), np.float32)))
    parts = document_logits(model, pack([(ids[:10], 0, 0), (ids[10:], 10, 0)], np.zeros((1, 2), np.float32)))
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("attention", ["yoso", "softmax"])
def test_training_learns_and_saves_the_best_epoch(attention: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    rows = documents(120)
    tokenizer = train_tokenizer([row.text for row in rows], 60)
    ids, targets = encode(tokenizer, rows, 64), target_matrix(rows, 2)

    def accuracy(model: Encoder) -> float:
        return float((predict(model, ids).argmax(1) == targets.argmax(1)).mean())

    recipe = Recipe(epochs=6, tokens_per_batch=256, learning_rate=1e-2, sampled_from=0.5, average_decay=0.9)
    best = train(Encoder(replace(CONFIG, attention=attention)), ids, targets, recipe, accuracy, tmp_path)
    assert best > 0.95
    assert accuracy(Encoder.from_pretrained(tmp_path)) == best
