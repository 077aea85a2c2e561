"""Lists to rerank, made of newsgroup messages: a subject line asks, the messages that stand under it are relevant.

A list is what a first stage hands to a reranker: the passages that BM25 puts first, in its order. Subjects whose words
hardly stand in their messages ask for what nobody could find; they are left out, by a rule that looks at words alone.
"""

import gzip
import json
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks.models.train_classifier import QUOTATION, SUBJECT

FEWEST_WORDS, MOST_WORDS = 25, 60  # of a passage
SHARED_WORDS = 2  # that a subject and its passage have in common, words of nearly every passage aside
COMMON_SHARE = 0.05  # of the passages: a word that more of them have is common
K1, B = 1.2, 0.75  # as BM25 is usually set
ANSWERED = re.compile(r"^(?:re|fwd?)\b[:\s]*", re.IGNORECASE)


class Passage(NamedTuple):
    """The beginning of a message without quotations, and the subject that it stands under."""

    subject: str
    text: str


class RankingList(NamedTuple):
    """A query, its candidates in the order of BM25, and the places of those that are relevant."""

    query: str
    documents: list[str]
    relevant: list[int]

    def line(self) -> str:
        """As `attenuator calibrate` reads it."""
        return json.dumps(self._asdict())


class Bm25:
    """BM25 over passages.

    Args:
        texts: of the passages.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.counter = CountVectorizer(dtype=np.float32)
        self.analyse = self.counter.build_analyzer()
        counts = csr_matrix(self.counter.fit_transform(texts))
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        per_word = np.bincount(counts.indices, minlength=counts.shape[1])
        self.share = per_word / len(texts)
        self.idf = np.log1p((len(texts) - per_word + 0.5) / (per_word + 0.5))
        damping = np.repeat(K1 * (1 - B + B * lengths / lengths.mean()), np.diff(counts.indptr))
        counts.data = self.idf[counts.indices] * counts.data * (K1 + 1) / (counts.data + damping)
        self.weights = counts.T.tocsr()

    def rare(self, text: str) -> dict[str, float]:
        """Inverse document frequency of each word of a text that some passages have, and not many."""
        known = self.counter.vocabulary_
        words = {word: known[word] for word in self.analyse(text) if word in known}
        return {word: float(self.idf[place]) for word, place in words.items() if self.share[place] <= COMMON_SHARE}

    def best(self, query: str, count: int) -> npt.NDArray[np.int64]:
        """Places of the passages that score highest, the best first; equal ones in their own order."""
        scores = np.asarray((self.counter.transform([query]) @ self.weights).todense()).ravel()
        return np.argsort(-scores, kind="stable")[:count]


def passages(path: Path) -> list[Passage]:
    """The passages of a file of messages (JSON lines with `text`, gzipped), without short ones and repetitions."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        messages = [json.loads(line)["text"].partition("\n\n") for line in lines]
    made = {}
    for header, _, body in messages:
        subject = SUBJECT.search(header)
        words = QUOTATION.sub("", body).split()
        if subject and len(words) >= FEWEST_WORDS:
            text = " ".join(words[:MOST_WORDS])
            made[text] = Passage(ANSWERED.sub("", subject[1].strip()), text)
    return list(made.values())


def asks_for(passage: Passage, index: Bm25) -> bool:
    """Whether a passage's subject has enough words in common with it to find it."""
    return len(index.rare(passage.subject).keys() & index.rare(passage.text).keys()) >= SHARED_WORDS


def lists(corpus: Sequence[Passage], size: int, most: int, seed: int = 0) -> list[RankingList]:
    """One list for each of so many subjects, drawn by lot.

    Args:
        corpus: passages to find.
        size: documents of a list.
        most: lists, at most.
        seed: of the draw.
    """
    index = Bm25([passage.text for passage in corpus])
    asking = [place for place, passage in enumerate(corpus) if asks_for(passage, index)]
    random.Random(seed).shuffle(asking)
    made: dict[str, RankingList] = {}
    for place in asking:
        subject = corpus[place].subject
        key = subject.lower()
        if key in made or len(made) == most:
            continue
        found = index.best(subject, size)
        if place not in found:  # the true one is always there, in the last place where BM25 missed it
            found[-1] = place
        relevant = [i for i, each in enumerate(found) if corpus[each].subject.lower() == key]
        made[key] = RankingList(subject, [corpus[each].text for each in found], relevant)
    return list(made.values())


def known_item(words: dict[str, float], source: random.Random) -> str:
    """A made-up query for a passage that someone remembers in part: a few of its words, the rare ones sooner."""
    # The largest of random() ** (1 / weight) are a weighted draw without replacement (Efraimidis and Spirakis, 2006).
    keys = {word: math.log(source.random()) / max(weight, 1e-9) for word, weight in words.items()}
    chosen = sorted(keys, key=lambda word: -keys[word])[: source.randint(3, 6)]
    source.shuffle(chosen)
    return " ".join(chosen)


def examples(corpus: Sequence[Passage], others: int, candidates: int, seed: int = 0) -> list[tuple[str, str, int]]:
    """Queries with passages that are relevant or not: what a reranker learns from.

    Each passage is asked for by its subject, where that is possible, and by words that someone remembers of it; the
    passages beside it come from the lists that it would stand in.

    Args:
        corpus: passages.
        others: passages for each query that are not relevant.
        candidates: so many of BM25's best are drawn from.
        seed: of all draws.

    Returns:
        Query, passage and whether it is relevant (1 or 0).
    """
    source = random.Random(seed)
    index = Bm25([passage.text for passage in corpus])
    made = []
    for passage in corpus:
        rare = index.rare(passage.text)
        queries = [known_item(rare, source)] if len(rare) >= SHARED_WORDS else []
        if asks_for(passage, index):
            queries.append(passage.subject)
        for query in queries:
            found = (corpus[place] for place in index.best(query, candidates))
            wrong = [each.text for each in found if each.subject.lower() != passage.subject.lower()]
            made.append((query, passage.text, 1))
            made += [(query, text, 0) for text in source.sample(wrong, min(others, len(wrong)))]
    return made
