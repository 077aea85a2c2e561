"""Lists to rerank, on made-up messages: what is asked, what is relevant, and how an order is judged."""

import gzip
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from benchmarks.models import ranking
from benchmarks.models.ranking import Bm25, Passage, RankingList
from benchmarks.models.rerank import quality, reached
from benchmarks.service.rerank import quality_of

WORDS = [f"word{number}" for number in range(6000)]


def corpus(count: int = 60) -> list[Passage]:
    """Passages of random words whose subjects are four of their words."""
    source = random.Random(1)
    texts = [source.sample(WORDS, 30) for _ in range(count)]
    return [Passage(" ".join(text[:4]), " ".join(text)) for text in texts]


def test_bm25_is_the_published_formula() -> None:
    texts = ["red green green", "red blue", "green yellow black white"]
    index = Bm25(texts)
    # "green" stands twice among three words of the first text, and once among four of the last; three is the mean.
    idf = math.log1p((3 - 2 + 0.5) / (2 + 0.5))
    scores = [idf * 2 * 2.2 / (2 + 1.2), 0.0, idf * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 4 / 3))]
    weights = np.asarray(index.weights.todense())[index.counter.vocabulary_["green"]]
    assert weights == pytest.approx(scores, rel=1e-6)
    assert index.best("green", 3).tolist() == [0, 2, 1]


def test_messages_lose_headers_quotations_and_answer_marks(tmp_path: Path) -> None:
    said = " ".join(WORDS[:30])
    text = f"From: a\nSubject: Re: RE: Old cars\nLines: 3\n\nb@c writes:\n> quoted\n{said}"
    path = tmp_path / "messages.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps({"text": each}) + "\n" for each in (text, text, "Subject: Short\n\ntoo short"))
    assert ranking.passages(path) == [Passage("Old cars", said)]


def test_a_list_holds_its_own_passage_and_every_subject_once() -> None:
    passages = corpus()
    passages += [Passage(passages[0].subject.upper(), " ".join(reversed(passages[0].text.split())))]
    lists = ranking.lists(passages, size=20, most=1000)
    assert len({each.query.lower() for each in lists}) == len(lists) == 60
    for each in lists:
        own = {passage.text for passage in passages if passage.subject.lower() == each.query.lower()}
        assert len(set(each.documents)) == 20
        assert {each.documents[place] for place in each.relevant} == own
    assert max(len(each.relevant) for each in lists) == 2


def test_a_passage_that_bm25_misses_takes_the_last_place() -> None:
    passages = [Passage("", " ".join(["alpha", "beta", *WORDS[i : i + 5]])) for i in range(0, 200, 5)]
    far = Passage("alpha beta", " ".join(["alpha", "beta", *WORDS[200:390]]))
    common = [Passage("", " ".join(random.Random(i).sample(WORDS, 12))) for i in range(2000)]
    [made] = [each for each in ranking.lists([*passages, far, *common], 10, 1000) if each.query == far.subject]
    assert made.relevant == [9]
    assert made.documents[9] == far.text


def test_examples_are_one_relevant_passage_beside_others_that_are_not() -> None:
    passages = corpus()
    made = ranking.examples(passages, others=2, candidates=10)
    assert made == ranking.examples(passages, others=2, candidates=10)
    assert len(made) == 60 * 2 * 3  # asked for by words and by subject
    for (query, own, relevant), *others in (made[i : i + 3] for i in range(0, len(made), 3)):
        assert relevant == 1
        assert set(query.split()) <= set(own.split())
        assert all(text != own and not label and asked == query for asked, text, label in others)


def test_lists_are_judged_in_two_steps() -> None:
    first, last = np.array([1.0, 4.0, 3.0, 2.0]), np.array([9.0, 0.0, 5.0, 7.0])
    each = RankingList("q", ["a", "b", "c", "d"], [0])
    assert quality([each], [first], [last], 4).tolist() == [[1.0, 1.0]]
    assert quality([each], [first], [last], 2)[0, 1] == 0.25


def test_what_loses_least_within_a_share_of_the_time_is_named() -> None:
    rows = [
        {"first": name, "rescored": 5, "time": time, "lost": lost, "lost_95": 0.01}
        for name, time, lost in (("a", 0.6, 0.0), ("b", 0.5, 0.02), ("c", 0.4, 0.03), ("d", 0.3, 0.05))
    ]
    half, third = reached(rows)
    assert "b, 5 scored again" in half
    assert "d, 5 scored again" in third
    assert reached(rows[:1]) == []


def test_answers_of_the_service_are_judged_by_the_order_of_their_documents() -> None:
    lists = [RankingList("q", ["a", "b"], [1]), RankingList("q", ["a", "b"], [1])]
    answers = [{"results": [{"index": 1}, {"index": 0}]}, {"results": [{"index": 0}, {"index": 1}]}]
    assert quality_of(lists, answers).tolist() == [1.0, pytest.approx(1 / math.log2(3))]
