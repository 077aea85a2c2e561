r"""Trains cross-encoders with one output for `rerank.py`, and writes their bundles and the lists that they rank.

    python -m benchmarks.models.train_reranker --data 20newsgroups --output rerankers

DATA is a folder with `train.jsonl.gz` and `test.jsonl.gz`, newsgroup messages as lines with `text`; `ranking.py` says
what is asked and what is relevant. The two files hold different messages. Of the second every other passage is in the
lists; the rest are those that `keep` is taught with, because a model's answers to what it was trained on teach nothing.

Two BERTs learn by binary cross-entropy: `mini`, 2 layers of 128 channels, from nothing, and `base`, 4 of 256, from what
`mini` computes. Then `base` is taught to bear a small `keep` with the selection behind its second layer.
OUTPUT gets `checkpoints/`, `bundles/` (base, base-first, base-int8, base-taught, mini), `lists.jsonl` to calibrate with
and `held_out.jsonl` to measure on. What is there already stays. Minutes are of one processor, as in
`train_classifier.py`. Needs torch, transformers and scikit-learn (extra `train`).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertForSequenceClassification, BertTokenizerFast
from transformers.utils import logging

from attenuator.__main__ import main as attenuator
from attenuator.export import export
from benchmarks.models import ranking
from benchmarks.models.grown import grown
from benchmarks.models.train_classifier import Text, fresh, shape_of, train

LENGTH = 160  # tokens of a pair at most
DOCUMENTS = 50  # of a list
OTHERS = 2  # passages beside each relevant one, of the best so many
LABEL = "relevance"
SEED = 0
# Layers, channels, minutes of training and the learning rate at its highest.
MODELS = {"mini": (2, 128, 4.0, 6e-4), "base": (4, 256, 4.0, 2e-4)}
# How `keep` is taught to leave tokens out: behind the second layer, and they become one row.
SCHEDULE, MERGE = "second", "mean"
# Bundles: checkpoint, precision and schedule.
BUNDLES = {
    "base": ("base", "fp32", SCHEDULE),
    "base-first": ("base", "fp32", "first"),
    "base-int8": ("base", "int8", SCHEDULE),
    "base-taught": ("base-taught", "fp32", SCHEDULE),
    "mini": ("mini", "fp32", "first"),
}

Examples = Sequence[tuple[str, str, int]]


def encoded(tokenizer: Any, pairs: Examples) -> list[torch.Tensor]:
    """Ids and types of each pair, `[tokens, 2]`."""
    queries, documents = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    read = tokenizer(queries, documents, truncation=True, max_length=LENGTH, return_token_type_ids=True)
    return [torch.tensor(row).t() for row in zip(read["input_ids"], read["token_type_ids"], strict=True)]


def begun(texts: list[Text], checkpoints: Path, name: str) -> tuple[Any, Any]:
    """An untrained model of `MODELS` and its tokenizer; `base` begins as the trained `mini`, see `grown.py`."""
    layers, channels, _, _ = MODELS[name]
    if name == "mini":
        return fresh(texts, (LABEL,), checkpoints / name, shape_of(layers, channels, LENGTH))
    small = BertForSequenceClassification.from_pretrained(checkpoints / "mini")
    return grown(small, layers), BertTokenizerFast.from_pretrained(checkpoints / "mini")


def taught_on(pairs: Examples, checkpoints: Path, name: str, minutes: float) -> None:
    """Trains one of `MODELS` and writes its checkpoint."""
    folder = checkpoints / name
    folder.mkdir(parents=True)
    model, tokenizer = begun([Text(query, label, document) for query, document, label in pairs], checkpoints, name)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(folder)
    # With this name of the task transformers computes binary cross-entropy; what is saved is a plain score.
    model.config.problem_type = "multi_label_classification"
    rows, labels = encoded(tokenizer, pairs), [[float(label)] for _, _, label in pairs]

    def save(share: float, read: int) -> None:
        print(f"{name}, {share:4.0%}: {read / len(pairs):.2f} epochs", flush=True)

    model.train()
    train(model, rows, labels, minutes * 60, MODELS[name][3], 0, save)  # type: ignore[arg-type]  # a list of one label
    model.config.problem_type = "regression"
    model.save_pretrained(folder)


def teach(source: Path, pairs: Examples, output: Path, minutes: float, texts: Path) -> None:
    """Teaches a checkpoint to bear a small `keep`, by its own answers.

    Raises:
        SystemExit: `attenuator adapt` failed.
    """
    texts.write_text("".join(json.dumps({"text": q, "text_pair": d}) + "\n" for q, d, _ in pairs), encoding="utf-8")
    flags = ["--data", str(texts), "--output", str(output), "--schedule", SCHEDULE, "--truncate"]
    flags += ["--max-minutes", str(minutes), "--threads", "1"]
    if attenuator(["adapt", str(source), "--keep", *flags]):
        raise SystemExit("benchmarks: `attenuator adapt` failed")


def write_lists(corpus: Sequence[ranking.Passage], options: argparse.Namespace) -> None:
    """Writes the lists to measure on, and others to calibrate with."""
    held_out, others = options.output / "held_out.jsonl", options.lists or options.output / "lists.jsonl"
    made = ranking.lists(corpus, DOCUMENTS, options.measured + options.calibrating)
    for path, part in ((held_out, made[: options.measured]), (others, made[options.measured :])):
        path.write_text("".join(each.line() + "\n" for each in part), encoding="utf-8")
        print(f"{path}: {len(part)} lists", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.jsonl.gz and test.jsonl.gz")
    parser.add_argument("--output", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument("--lists", type=Path, help="file of the lists to calibrate with, in place of OUTPUT's")
    parser.add_argument("--measured", type=int, default=150, help="lists to measure on")
    parser.add_argument("--calibrating", type=int, default=250, help="lists to calibrate with")
    parser.add_argument("--minutes", type=float, help="of training each model, in place of its own")
    parser.add_argument("--teaching-minutes", type=float, default=4.0)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    unseen = ranking.passages(options.data / "test.jsonl.gz")
    write_lists(unseen[::2], options)
    checkpoints, bundles = options.output / "checkpoints", options.output / "bundles"
    pairs: Examples = []
    for name in options.models:
        if not (checkpoints / name / "config.json").exists():
            pairs = pairs or ranking.examples(ranking.passages(options.data / "train.jsonl.gz"), OTHERS, DOCUMENTS)
            taught_on(pairs, checkpoints, name, options.minutes or MODELS[name][2])
    if "base" in options.models and not (checkpoints / "base-taught" / "config.json").exists():
        others = ranking.examples(unseen[1::2], OTHERS, DOCUMENTS)
        minutes, texts = options.teaching_minutes, options.output / "unlabelled.jsonl"
        teach(checkpoints / "base", others, checkpoints / "base-taught", minutes, texts)
    for bundle, (checkpoint, precision, schedule) in BUNDLES.items():
        if (checkpoints / checkpoint / "config.json").exists() and not (bundles / bundle).exists():
            options_of = {"attention": "softmax", "precision": precision, "schedule": schedule, "merge": MERGE}
            export(str(checkpoints / checkpoint), output=bundles / bundle, **options_of)
    return 0


if __name__ == "__main__":
    sys.exit(main())
