"""Small classifiers for tables of scores: what they start from, and their training by `attenuator train`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attenuator.__main__ import main as attenuator
from attenuator.export.encoder import Encoder
from benchmarks.contenders.settings import Contender
from benchmarks.models.train_classifier import CHANNELS, LAYERS, POSITIONS, Text, fresh, shape_of

Texts = Sequence[dict[str, Any]]


def note(sentence: str) -> None:
    """Says something on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def command(arguments: Sequence[str]) -> None:
    """Runs a command of the product.

    Raises:
        SystemExit: it failed, or was interrupted.
    """
    note(f"attenuator {' '.join(arguments)}")
    code = attenuator(list(arguments))
    if code:
        raise SystemExit(code)


def write(rows: Texts, path: Path) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train(start: Path, rows: Texts, output: Path, *arguments: str) -> Path:
    """Trains by `attenuator train`, goes on where that was stopped, and does nothing where it is done.

    Args:
        start: a checkpoint.
        rows: with `text`, perhaps `text_pair`, and `label`.
        output: folder of the new one.
        arguments: further ones of the command.

    Returns:
        The new checkpoint's folder.
    """
    record = output / "training.json"
    if record.is_file() and json.loads(record.read_text(encoding="utf-8"))["finished"]:
        return output
    pair = ["--pair-column", "text_pair"] if "text_pair" in rows[0] else []
    resume = ["--resume"] if record.is_file() else []
    file = write(rows, output.with_name(f"{output.name}.jsonl"))
    places = ["train", str(start), "--data", str(file), "--output", str(output), "--truncate"]
    command([*places, *pair, *arguments, *resume])
    return output


def as_texts(rows: Texts) -> list[Text]:
    """Texts and pairs as one text each."""
    return [Text(" ".join(row[name] for name in ("text", "text_pair") if name in row), row["label"]) for row in rows]


def fresh_bert(rows: Texts, names: tuple[str, ...], layers: int, tokens: int, folder: Path) -> None:
    """Writes an untrained BERT of 256 channels, its vocabulary the task's own.

    Args:
        rows: texts to learn from.
        names: of the labels.
        layers: up to 4.
        tokens: of the longest text.
        folder: of the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, tokenizer = fresh(as_texts(rows), names, folder, shape_of(LAYERS, CHANNELS, POSITIONS))
    model.bert.encoder.layer = model.bert.encoder.layer[:layers]
    embeddings = model.bert.embeddings
    positions = nn.Embedding(tokens, model.config.hidden_size)
    positions.weight.data.copy_(embeddings.position_embeddings.weight[:tokens])
    embeddings.position_embeddings = positions
    model.config.update({"num_hidden_layers": layers, "max_position_embeddings": tokens})
    tokenizer.model_max_length = tokens
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def pretrained(start: Path, names: tuple[str, ...], half: bool, tokens: int, folder: Path) -> None:
    """Writes a pretrained BERT with a new classifier.

    Args:
        start: its checkpoint.
        names: of the labels.
        half: every second layer alone, as DistilBERT begins.
        tokens: of the longest text.
        folder: of the checkpoint.

    Raises:
        SystemExit: it is no checkpoint of a BERT.
    """
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: label for label, name in enumerate(names)}}
    torch.manual_seed(0)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            start, local_files_only=True, num_labels=len(names), **labels
        )
        layers = model.bert.encoder.layer
        tokenizer = AutoTokenizer.from_pretrained(start, local_files_only=True)
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise SystemExit(f"--start is '{start}', must be the folder of a BERT with its tokenizer: {reason}") from None
    if half:
        model.bert.encoder.layer = layers[::2]
        model.config.num_hidden_layers = len(layers[::2])
    tokenizer.model_max_length = tokens
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def own_encoder(rows: Texts, names: tuple[str, ...], one: Contender, shape: dict[str, Any], folder: Path) -> None:
    """Writes an untrained own encoder that averages its tokens, its vocabulary the task's own.

    Args:
        rows: texts to learn from.
        names: of the labels.
        one: its attention.
        shape: layers, heads, tokens and so on, of the config; 256 channels.
        folder: of the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, tokenizer = fresh(as_texts(rows), names, folder, shape_of(LAYERS, CHANNELS, POSITIONS))
    words = model.bert.embeddings.word_embeddings.weight.detach()
    labels = {"num_labels": len(names), "id2label": dict(enumerate(names))}
    torch.manual_seed(0)
    encoder = Encoder(one.config(vocab_size=len(words), hidden_size=words.shape[1], **shape, **labels))
    encoder.embeddings.weight.data.copy_(words)
    encoder.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
