r"""Trains classifiers for `end_to_end.py`: Hugging Face's BERT, 4 layers of 256 channels, without reduction.

    python -m benchmarks.models.train_classifier --data 20newsgroups --task topics --length 80 \
        --output checkpoints/short
    python -m benchmarks.models.train_classifier --data 20newsgroups --task topics --length 512 --shortest 110 \
        --start checkpoints/short --learning-rate 5e-5 --output checkpoints/long
    python -m benchmarks.models.train_classifier --data 20newsgroups --task topics --subjects --length 80 \
        --output checkpoints/news
    python -m benchmarks.models.train_classifier --data imdb --task reviews --length 512 --output checkpoints/reviews
    python -m benchmarks.models.train_classifier --data 20newsgroups --task pairs --length 96 --output checkpoints/pairs
    python -m benchmarks.models.train_classifier --data imdb --task reviews --length 128 --positions 128 --layers 2 \
        --channels 128 --minutes 1.8 --output checkpoints/small
    python -m benchmarks.models.train_classifier --data imdb --task reviews --length 512 --positions 512 --window 64 \
        --start checkpoints/small --learning-rate 3e-4 --minutes 2 --output checkpoints/longformer

DATA is a folder with `train.jsonl.gz` and `test.jsonl.gz`; a line has `text` and `label` (reviews: 0 or 1), or `group`
(topics and pairs: the newsgroup's name). Newsgroup messages lose their headers and quotations, which name the group;
with `--subjects` every text of a topic begins with its message's subject, as a headline stands before a news text.
Documents are cut at LENGTH WordPieces; where that is short, their paragraphs are the texts. Pairs ask whether a passage
is where a few words come from: six of ten words in a row, in their order, beside their own paragraph or another of the
same newsgroup, each as often, so that words must be matched with words. OUTPUT becomes an ordinary checkpoint with its
tokenizer, beside `test.jsonl`, the test texts and their labels.

Training lasts `--minutes`, whatever it has reached by then; the learning rate falls to zero with the time left. Time is
that of the processor, so that other work beside it makes it longer and not worse.
Batches are of similar lengths, the first third of the time over texts cut at 64 tokens: a short text already tells
what words mean, and costs little. Needs torch, transformers and scikit-learn (extra `train`).
"""

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from benchmarks.contenders.longformers import longformer_of

VOCABULARY = 8192
LAYERS, CHANNELS, HEAD_CHANNELS, POSITIONS = 4, 256, 64, 512
SHORTEST = 12  # WordPieces; less text seldom has a topic
PARAGRAPHS_BELOW = 128  # WordPieces
BATCH_TOKENS = 1536
LEARNING_RATE, WARM_UP, WEIGHT_DECAY, DROPOUT = 6e-4, 0.03, 0.01, 0.1
SHORT_LENGTH, SHORT_SHARE = 64, 1 / 3
SAVE_EVERY_S = 300
SPLITS = ("train", "test")
TESTED = 600
# A topic holds the groups whose names begin so.
TOPICS = {
    "computers": ("comp.",),
    "sport": ("rec.sport.",),
    "vehicles": ("rec.autos", "rec.motorcycles"),
    "religion": ("soc.religion.", "alt.atheism", "talk.religion."),
    "politics": ("talk.politics.",),
}
LABELS = {"topics": tuple(TOPICS), "reviews": ("negative", "positive"), "pairs": ("elsewhere", "here")}
# Of the words of a pair's first text: how many there are, and of how many in a row.
WORDS, WINDOW = 6, 10
PASSAGE_WORDS = 40
SUBJECT = re.compile(r"^Subject: (?:Re: ?)*(.*)$", re.MULTILINE | re.IGNORECASE)
QUOTATION = re.compile(r"^[>|:].*$|^.*\b(writes|wrote):?\s*$|^In article.*$", re.MULTILINE)


class Text(NamedTuple):
    """A text, the index of its label, the second text of a pair, and the subject that a text begins with."""

    text: str
    label: int
    pair: str | None = None
    subject: str = ""


def documents(path: Path, task: str, subjects: bool) -> list[Text]:
    """The documents of a data file that have a label of the task; messages with their subjects or without."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if task == "reviews":
        return [Text(row["text"].replace("<br />", " "), int(row["label"])) for row in rows]
    if task == "pairs":
        return pairs([(row["group"], QUOTATION.sub("", row["text"].partition("\n\n")[2])) for row in rows])
    topics = [(label, begin) for label, begins in enumerate(TOPICS.values()) for begin in begins]
    return [
        Text(QUOTATION.sub("", body), label, subject=subject_of(header) if subjects else "")
        for row in rows
        for header, _, body in [row["text"].partition("\n\n")]
        for label, begin in topics
        if row["group"].startswith(begin)
    ]


def subject_of(header: str) -> str:
    """The subject of a message, which its texts begin with, as a headline stands before an article's first sentence."""
    subject = SUBJECT.search(header)
    return "" if subject is None else f"{subject[1]}. "


def pairs(messages: list[tuple[str, str]]) -> list[Text]:
    """Words and a passage that they come from, or another of the same group; messages with their group's name."""
    by_group: dict[str, list[str]] = {}
    for group, message in messages:
        parts = [" ".join(part.split()[:PASSAGE_WORDS]) for part in re.split(r"\n\s*\n", message)]
        by_group.setdefault(group, []).extend(part for part in parts if len(part.split()) > 2 * WINDOW)
    made = []
    for parts in by_group.values():
        for index, part in enumerate(parts):
            words = part.split()
            start = random.randrange(len(words) - WINDOW)
            chosen = sorted(random.sample(range(start, start + WINDOW), WORDS))
            label = random.randrange(2)
            passage = part if label else parts[(index + random.randrange(1, len(parts))) % len(parts)]
            made.append(Text(" ".join(words[place] for place in chosen), label, passage))
    return made


def paragraphs(texts: list[Text]) -> list[Text]:
    """The parts of documents between blank lines; pairs as they are."""
    return [
        text._replace(text=text.subject + part)
        for text in texts
        for part in ([text.text] if text.pair else re.split(r"\n\s*\n", text.text))
        if part.strip()
    ]


def fresh(texts: list[Text], names: tuple[str, ...], folder: Path, shape: dict[str, int]) -> tuple[Any, Any]:
    """An untrained classifier of a shape, and a tokenizer with a vocabulary of the task's own."""
    wordpieces = BertWordPieceTokenizer(lowercase=True)
    words = (text.pair or text.text for text in texts)
    wordpieces.train_from_iterator(words, VOCABULARY, min_frequency=3, show_progress=False)
    wordpieces.save_model(str(folder))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        id2label=dict(enumerate(names)),
        label2id={name: label for label, name in enumerate(names)},
        **shape,
    )
    model = BertForSequenceClassification(config)
    start_embeddings(model.bert.embeddings.word_embeddings.weight, texts, tokenizer)
    for layer in model.bert.encoder.layer:
        # At BERT's usual start attention's output is a hundredth of the residual beside it, and the first token, which
        # classifies, would for long see next to nothing of the others.
        for dense in (layer.attention.self.value, layer.attention.output.dense):
            torch.nn.init.orthogonal_(dense.weight)
    if texts[0].pair:
        start_matching(model.bert)
    return model, tokenizer


def shape_of(layers: int, channels: int, positions: int) -> dict[str, int]:
    """Sizes as `BertConfig` names them."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": channels,
        "num_attention_heads": max(1, channels // HEAD_CHANNELS),
        "intermediate_size": 4 * channels,
        "max_position_embeddings": positions,
    }


def start_embeddings(weight: torch.nn.Parameter, texts: list[Text], tokenizer: Any) -> None:
    """Lets embeddings start from which texts their WordPieces stand in: half an hour teaches too little of that."""
    ids = tokenizer([part.pair or part.text for part in paragraphs(texts)], add_special_tokens=False)["input_ids"]
    counter = TfidfVectorizer(analyzer=list, vocabulary=range(len(tokenizer)), lowercase=False, sublinear_tf=True)
    counts = counter.fit_transform(ids)
    channels = min(weight.shape[1], *counts.shape)  # few texts have fewer
    found = torch.from_numpy(TruncatedSVD(channels, n_iter=2, random_state=0).fit(counts).components_.T)
    vectors = torch.nn.functional.pad(found, (0, weight.shape[1] - found.shape[1]))
    scale = weight.norm() / vectors.norm()
    with torch.no_grad():
        weight.add_(vectors.float() * scale)


@torch.no_grad()
def start_matching(bert: Any) -> None:
    """Lets each word look for its like, and what it finds say in which text: minutes teach too little of that, too."""
    tables = bert.embeddings
    tables.position_embeddings.weight.mul_(0.1)
    side = torch.nn.functional.normalize(torch.randn(tables.word_embeddings.embedding_dim), dim=0)
    size = tables.word_embeddings.weight.norm(dim=1).mean() / 2
    tables.token_type_embeddings.weight.copy_(torch.stack([size * side, -size * side]))
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        torch.nn.init.orthogonal_(attention.query.weight)
        attention.query.weight -= torch.outer(attention.query.weight @ side, side)  # whichever text it is in
        attention.key.weight.copy_(attention.query.weight)


def batches(encoded: list[torch.Tensor], labels: list[int], shuffle: bool = True) -> Iterator[dict[str, torch.Tensor]]:
    """Padded batches of texts of similar lengths, in random order; of a text `[tokens, 2]`: ids and token types."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]) + shuffle * random.random() * 4)
    groups: list[list[int]] = [[]]
    for i in order:
        if (len(groups[-1]) + 1) * len(encoded[i]) > BATCH_TOKENS and groups[-1]:
            groups.append([])
        groups[-1].append(i)
    if shuffle:
        random.shuffle(groups)
    for group in groups:
        rows = [encoded[i] for i in group]
        ids, types = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).unbind(2)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row[:, 0]) for row in rows], batch_first=True)
        named = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
        yield {**named, "labels": torch.tensor([labels[i] for i in group])}


@torch.no_grad()
def accuracy(model: Any, encoded: list[torch.Tensor], labels: list[int]) -> float:
    """Share of texts whose label is right."""
    model.eval()
    right = [model(**batch).logits.argmax(1) == batch["labels"] for batch in batches(encoded, labels, shuffle=False)]
    model.train()
    return float(torch.cat(right).float().mean())


def train(
    model: Any,
    encoded: list[torch.Tensor],
    labels: list[int],
    seconds: float,
    learning_rate: float,
    short_share: float,
    save: Any,
) -> None:
    """Trains for so long.

    Args:
        model: to be trained.
        encoded: token ids and types of each text, `[tokens, 2]`.
        labels: of each text.
        seconds: of the processor, until the learning rate is zero.
        learning_rate: at its highest.
        short_share: of the time, over texts cut at 64 tokens.
        save: called now and then with the share of time gone and the texts read so far.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, learning_rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98))
    started = saved = time.thread_time()
    share, read = 0.0, 0
    while share < 1:
        cut = SHORT_LENGTH if share < short_share else sys.maxsize
        for batch in batches([ids[:cut] for ids in encoded], labels):
            now = time.thread_time()
            share = (now - started) / seconds
            if share >= 1 or (cut == SHORT_LENGTH and share >= short_share):
                break
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * min(share / WARM_UP, (1 - share) / (1 - WARM_UP))
            with torch.autocast("cpu", torch.bfloat16):  # twice as fast where the processor multiplies bfloat16
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            optimiser.zero_grad()
            read += len(batch["labels"])
            if now - saved > SAVE_EVERY_S:
                save(share, read)
                saved = time.thread_time()
    save(1.0, read)


def line_of(text: Text, names: tuple[str, ...]) -> dict[str, str]:
    """A text as `test.jsonl` has it."""
    pair = {} if text.pair is None else {"text_pair": text.pair}
    return {"text": text.text, **pair, "label": names[text.label]}


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.jsonl.gz and test.jsonl.gz")
    parser.add_argument("--task", choices=list(LABELS), required=True)
    parser.add_argument("--length", type=int, required=True, help="WordPieces of a text at most")
    parser.add_argument("--subjects", action="store_true", help="topics: each text begins with its message's subject")
    parser.add_argument(
        "--shortest", type=int, default=SHORTEST, help="WordPieces of a text at least, before it is cut"
    )
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--channels", type=int, default=CHANNELS, help="of the residual stream; heads have 64")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="rows of the table of learned positions")
    parser.add_argument("--window", type=int, help="go on from --start as a Longformer whose tokens see so many")
    parser.add_argument("--start", type=Path, help="a pretrained BERT, or a checkpoint of this program, to go on from")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--minutes", type=float, default=38.0)
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    options = parser.parse_args(arguments)
    if options.subjects and (options.task != "topics" or options.length >= PARAGRAPHS_BELOW):
        parser.error(f"--subjects stands before the paragraphs of topics: --length must be below {PARAGRAPHS_BELOW}")
    if options.window and not options.start:
        parser.error("--window makes a Longformer of what --start names, which is not given")
    random.seed(0)
    torch.manual_seed(0)
    whole = {split: documents(options.data / f"{split}.jsonl.gz", options.task, options.subjects) for split in SPLITS}
    options.output.mkdir(parents=True, exist_ok=True)
    names = LABELS[options.task]
    if options.start:
        labels_of = {"id2label": dict(enumerate(names)), "label2id": {name: label for label, name in enumerate(names)}}
        model = BertForSequenceClassification.from_pretrained(options.start, num_labels=len(names), **labels_of)
        if options.window:
            model = longformer_of(model, options.positions, options.window)
        model.base_model.embeddings.requires_grad_(False)  # they mean what they should, and cost most to update
        tokenizer = BertTokenizerFast.from_pretrained(options.start)
    else:
        shape = shape_of(options.layers, options.channels, options.positions)
        model, tokenizer = fresh(whole["train"], names, options.output, shape)
    tokenizer.model_max_length = options.length
    tokenizer.save_pretrained(options.output)
    texts, encoded, labels = {}, {}, {}
    for split in SPLITS:
        cut = paragraphs(whole[split]) if options.length < PARAGRAPHS_BELOW else whole[split]
        random.shuffle(cut)
        columns = [text.text for text in cut], [text.pair for text in cut] if options.task == "pairs" else None
        read = tokenizer(*columns, truncation=True, max_length=options.length, return_token_type_ids=True)
        rows = zip(read["input_ids"], read["token_type_ids"], strict=True)
        tensors = [torch.tensor(row).t() for row in rows]
        texts[split] = [text for text, row in zip(cut, tensors, strict=True) if len(row) >= options.shortest]
        encoded[split] = [row for row in tensors if len(row) >= options.shortest]
        labels[split] = [text.label for text in texts[split]]
        mean = np.mean([len(row) for row in encoded[split]])
        print(f"{split}: {len(texts[split])} texts, {mean:.1f} tokens in the mean", flush=True)
    lines = (json.dumps(line_of(text, names)) for text in texts["test"])
    (options.output / "test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tested = random.sample(range(len(texts["test"])), min(TESTED, len(texts["test"])))
    sample = [encoded["test"][i] for i in tested], [labels["test"][i] for i in tested]

    def save(share: float, read: int) -> None:
        model.save_pretrained(options.output)
        epochs = read / len(texts["train"])
        print(f"{share:4.0%}: {epochs:.2f} epochs, test accuracy {accuracy(model, *sample):.4f}", flush=True)

    train(
        model,
        encoded["train"],
        labels["train"],
        options.minutes * 60,
        options.learning_rate,
        0 if options.start or options.task == "pairs" else SHORT_SHARE,
        save,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
