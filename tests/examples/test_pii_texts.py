"""The texts by rule that the `pii` model is trained and measured on: their spans, and the labels of their tokens."""

from itertools import pairwise

import pytest
from pii.evaluate import by_hand, entities
from pii.texts import KINDS, LABELS, LISTS, MARKED, SENTENCES, Maker, Text
from pii.train import targets, train_tokenizer


@pytest.fixture(scope="module", params=[False, True], ids=["training", "held out"])
def texts(request: pytest.FixtureRequest) -> list[Text]:
    maker = Maker(5, request.param)
    return [maker.text() for _ in range(400)]


def test_spans_lie_in_the_text_apart_from_each_other_and_begin_and_end_with_no_blank(texts: list[Text]) -> None:
    assert {kind for text in texts for *_, kind in text.spans} == set(KINDS)
    for text in texts:
        for start, end, _ in text.spans:
            assert 0 <= start < end <= len(text.text)
            assert text.text[start:end] == text.text[start:end].strip()
        assert all(one[1] <= other[0] for one, other in pairwise(text.spans))
        assert not set("{}[]#|") & set(text.text), text.text


def test_labels_are_bio_and_give_the_spans_back(texts: list[Text]) -> None:
    tokenizer = train_tokenizer([text.text for text in texts])
    for text in texts:
        encoding = tokenizer.encode(text.text)
        ids = targets(encoding, text.spans)
        assert [place for place, label in enumerate(ids) if label < 0] == [0, len(ids) - 1]
        labels = [LABELS[max(label, 0)] for label in ids]
        for one, other in pairwise(labels):
            assert not other.startswith("I-") or one[2:] == other[2:]
        found = sorted(entities(labels))
        offsets = [(encoding.offsets[start][0], encoding.offsets[end - 1][1], kind) for start, end, kind in found]
        assert offsets == list(text.spans)


def test_the_same_seed_makes_the_same_texts_and_held_out_ones_share_no_sentence_and_no_name() -> None:
    one, other = (Maker(7) for _ in range(2))
    assert [one.text() for _ in range(50)] == [other.text() for _ in range(50)]
    assert not set(SENTENCES["sentences"]) & set(SENTENCES["sentences, held out"])
    for name in ("first", "last", "city", "company"):
        names = [{maker.of(name) for _ in range(3000)} for maker in (Maker(1), Maker(1, held_out=True))]
        assert not names[0] & names[1]
    for name in ("phone", "iban", "card", "id", "passport", "address"):
        assert not set(LISTS[name]) & set(LISTS[f"{name}, held out"])


def test_texts_by_hand_name_known_kinds() -> None:
    assert {kind for text in by_hand() for *_, kind in text.spans} == set(MARKED.values()) == set(KINDS)
    assert any(not text.spans for text in by_hand())
