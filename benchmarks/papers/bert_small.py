r"""One small encoder trained from nothing with every attention, on sentences or reviews: who learns a task at all.

    python -m benchmarks.papers.bert_small --data DATA --work FOLDER --minutes 60        # goes on where it was stopped
    python -m benchmarks.papers.bert_small --data DATA --work FOLDER --attentions softmax yoso:num_hashes=8 \
        --texts 300 --epochs 1 --seeds 1 --output FILE.json                                   # a first look, a minute

Appendix 2.2 of the YOSO paper pretrains BERT-small with each attention and fine-tunes it on QNLI, QQP and MNLI. Nothing
is pretrained here: the own encoder of --layers layers and 256 channels with 4 heads, which averages its tokens, learns
one task by `attenuator train`, the same way and on the same texts with every attention. Its embeddings start from which
texts their WordPieces stand in. Knobs are their operators' defaults, or as named with the attention:
KEY:NAME=VALUE,NAME=VALUE with knobs, attributes, sizes or conv_size.

DATA has a folder for each task: `sst2` with `train.tsv` and `dev.tsv` as GLUE publishes them, `imdb` with
`train.jsonl.gz` and `test.jsonl.gz`, a line of which has `text` and `label`, 0 or 1. `attenuator train` chooses among
epochs on a tenth of the training texts; accuracy is that on texts of the test file, with the knobs of training.

A row of the result file is one model. A run trains what the file lacks, seed by seed; --minutes ends it behind the
model that is being trained by then, and what Ctrl-C stopped goes on from FOLDER. The rows are printed at the end.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attenuator.export.encoder_attention import ATTENTIONS, training_mix
from attenuator.tuning import checkpoints
from attenuator.tuning.batches import Rows as Tokenized
from attenuator.tuning.batches import predict
from attenuator.tuning.data import Text, encode
from benchmarks.contenders import glue
from benchmarks.contenders.classifiers import Texts, own_encoder, train
from benchmarks.contenders.settings import METAVAR, Contender, trainable
from benchmarks.measure import record
from benchmarks.measure.options import amount, count, folder
from benchmarks.measure.resumable import Rows, run, tree_of

TASKS = ("imdb", "sst2")
HEADS, FEED_FORWARD = 4, 1024
LEARNING_RATE = 5e-4
BATCH_TOKENS = 4096


def accuracy(folder: Path, rows: Texts) -> float:
    """Share of the texts whose label a checkpoint gives, with its knobs of training."""
    trained = checkpoints.load(folder)
    texts = [Text(str(place), {"text": row["text"]}) for place, row in enumerate(rows)]
    encoded = Tokenized(encode(texts, trained.texts, truncate=True))
    given = predict(trained.model, encoded, trained.collator, BATCH_TOKENS).argmax(axis=1)
    return float((given == np.array([row["label"] for row in rows])).mean())


def trained(one: Contender, seed: int, texts: Mapping[str, Texts], options: argparse.Namespace) -> dict[str, Any]:
    """A model's figures."""
    names = glue.TASKS[options.task].names
    size = f"{options.task}-{options.layers}-{options.tokens}-{options.texts}-{options.epochs:g}"
    place = options.work / size / one.name.replace(":", "-")
    shape = {"num_hidden_layers": options.layers, "num_attention_heads": HEADS, "intermediate_size": FEED_FORWARD}
    if not (place / "start" / "tokenizer.json").is_file():
        own_encoder(texts["train"], names, one, shape | {"max_tokens": options.tokens}, place / "start")
    further = {"--learning-rate": LEARNING_RATE, "--epochs": options.epochs, "--seed": seed, "--threads": 1}
    further |= {"--batch-tokens": BATCH_TOKENS}
    arguments = [str(word) for pair in further.items() for word in pair]
    folder = place / f"seed{seed}"
    begun, is_new = time.process_time(), not folder.exists()
    train(place / "start", texts["train"], folder, *arguments)
    spent = time.process_time() - begun
    told = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    # Of a run that was stopped and went on, the rest alone was timed.
    return {
        "accuracy": accuracy(folder, texts["test"]),
        "steps": told["steps"],
        "train_cpu_s": spent if is_new else None,
    }


def measure(rows: Rows, options: argparse.Namespace) -> bool:
    """Trains what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * options.minutes
    texts = {split: glue.read(options.data, options.task, split) for split in ("train", "dev")}
    texts = {"train": texts["train"][: options.texts], "test": texts["dev"][: options.test_texts]}
    size = {name: getattr(options, name) for name in ("task", "layers", "tokens", "epochs")}
    size |= {split: len(each) for split, each in texts.items()}
    facts = [
        (one, {**size, "attention": one.key, "settings": one.settings, "seed": seed})
        for seed in range(options.seeds)
        for one in options.attentions
    ]
    todo = [(one, names) for one, names in facts if not rows.find(**names)]
    labels = np.array([row["label"] for row in texts["test"]])
    about = {"commonest": float(np.bincount(labels).max() / len(labels))}
    with tqdm(total=len(todo), unit="model", disable=not todo) as bar:
        for one, names in todo:
            if time.monotonic() >= end:
                return False
            bar.set_postfix_str(f"{one.name}, seed {names['seed']}")
            # Only where training computes through the operator's own kernels do its figures depend on them.
            tree = tree_of([one.key] if training_mix(one.key) else [])
            found = trained(one, names["seed"], texts, options)
            rows.keep(names | about | found | tree)
            bar.update()
    return True


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for the task")
    parser.add_argument("--work", type=folder, required=True, help="folder for what is trained")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--attentions", nargs="+", type=trainable, metavar=METAVAR, help="all by default")
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--tokens", type=count, default=256, help="of a text at most")
    parser.add_argument("--texts", type=count, default=4000, help="to learn from at most")
    parser.add_argument("--test-texts", type=count, default=2000, help="to test on at most")
    parser.add_argument("--epochs", type=amount, default=3.0)
    parser.add_argument("--seeds", type=count, default=2)
    parser.add_argument("--minutes", type=amount, default=60, help="to spend; the same command goes on")
    parser.add_argument("--output", type=Path, default=record.STUDIES / "bert_small.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    options = parser.parse_args(arguments)
    if options.task not in glue.present(options.data):
        parser.error(f"--data is '{options.data}', which has no {options.task}/{glue.FILES[options.task]}")
    options.attentions = options.attentions or [trainable(key) for key in ATTENTIONS]
    return options


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    options = parse(arguments)
    torch.set_num_threads(1)
    shape = {"hidden": 256, "heads": HEADS, "feed_forward": FEED_FORWARD, "learning_rate": LEARNING_RATE}
    facts = {"benchmark": "bert_small", "shape": shape}
    return run(options.output, arguments, facts, lambda rows: measure(rows, options), again=options.again)


if __name__ == "__main__":
    sys.exit(main())
