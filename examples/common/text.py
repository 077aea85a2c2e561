"""Data sets as lists of `Document`s, and the vocabulary that is trained on them."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass(frozen=True)
class Document:
    """One labelled text; `labels` are the indices of the labels that hold."""

    id: str
    text: str
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A data set with its splits: epochs are chosen on `held_out`, figures are reported on `test`."""

    train: list[Document]
    held_out: list[Document]
    test: list[Document]
    labels: list[str]
    multi_label: bool = False


def imdb(folder: Path) -> Task:
    """IMDb reviews, official test split, a tenth of the train split held out."""

    def read(split: str) -> list[Document]:
        with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return [Document(str(row["id"]), row["text"], (int(row["label"]),)) for row in rows]

    kept, held_out = hash_split(read("train"), 10)
    return Task(kept, held_out, read("test"), ["negative", "positive"])


def cuad(folder: Path) -> Task:
    """CUAD contracts with the yes/no questions that lawyers answered for each whole contract; no official split."""
    with gzip.open(folder / "contracts.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    questions = list(rows[0]["clauses"])
    documents = [
        Document(
            str(row["id"]),
            row["text"],
            tuple(index for index, question in enumerate(questions) if row["clauses"][question] == "Yes"),
        )
        for row in rows
    ]
    rest, test = hash_split(documents, 20)
    kept, held_out = hash_split(rest, 15, salt="held out")
    return Task(kept, held_out, test, questions, multi_label=True)


TASKS: dict[str, Callable[[Path], Task]] = {"imdb": imdb, "cuad": cuad}


def hash_split(documents: Iterable[Document], percent: int, salt: str = "") -> tuple[list[Document], list[Document]]:
    """Split by a hash of salt and id: (the rest, about `percent` % held out). Independent of order and other rows."""
    kept: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        bucket = int.from_bytes(hashlib.sha256((salt + document.id).encode()).digest()[:8], "big") % 100
        (held_out if bucket < percent else kept).append(document)
    return kept, held_out


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Lower-cased WordPiece vocabulary of `vocab_size` pieces; encodes as `[CLS] text [SEP] (pair [SEP])`.

    HTML line breaks of IMDb become spaces, and a treebank's "do n't" the "don't" that people write.
    """
    normalizer = normalizers.Sequence(
        [
            normalizers.Replace("<br />", " "),
            normalizers.Replace(" n't", "n't"),
            normalizers.BertNormalizer(lowercase=True),
        ]
    )
    draft = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    draft.normalizer = normalizer
    draft.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    draft.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=SPECIAL_TOKENS, show_progress=False)
    )
    # The trainer numbers pieces that are equally frequent in an order that changes from run to run. Which of them it
    # takes in where the vocabulary is full changes too, and cannot be helped from here.
    pieces = [*SPECIAL_TOKENS, *sorted(set(draft.get_vocab()) - set(SPECIAL_TOKENS))]
    tokenizer = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    first, last = ((token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[first, last]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Iterable[Document], max_tokens: int) -> list[NDArray[np.int64]]:
    """Token ids `[tokens]` of each document, cut to `max_tokens` with the closing `[SEP]` kept."""
    texts = [document.text for document in documents]
    ids = [np.array(encoding.ids, dtype=np.int64) for encoding in tokenizer.encode_batch(texts)]
    return [np.append(row[: max_tokens - 1], row[-1]) if len(row) > max_tokens else row for row in ids]


def target_matrix(documents: list[Document], labels: int) -> NDArray[np.float32]:
    """Targets `[documents, labels]`: 1 where a label holds."""
    targets = np.zeros((len(documents), labels), dtype=np.float32)
    for row, document in enumerate(documents):
        targets[row, list(document.labels)] = 1.0
    return targets
