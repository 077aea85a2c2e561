r"""MCA on trained classifiers: scores and work over alpha beside Tables 1, 2 and 3 of its paper.

    python -m benchmarks.papers.mca_tables --data DATA --work FOLDER --start MINILM --epochs 3
    python -m benchmarks.papers.mca_tables --data DATA --work FOLDER --tasks sst2 --texts 200 --seeds 2 --epochs 1 \
        --output FILE.json                                                                  # a first look, minutes

DATA has a folder for each task: `sst2`, `mrpc`, `rte`, `cola` with `train.tsv` and `dev.tsv` as GLUE publishes them,
`imdb` with `train.jsonl.gz` and `test.jsonl.gz`, `hyperpartisan` with `byarticle.jsonl.gz`; those that are there are
taken. For each task of GLUE two classifiers are trained on its training file by `attenuator train`: `whole`, --start
or, without it, 4 layers of 256 channels from nothing, and `half`, every second layer of that (Table 2 has DistilBERT).
For long documents it is `windowed`: the own encoder from nothing, 2 layers of 256 channels under a window of 128 tokens
on each side (Table 3 has Longformer). --checkpoint takes a whole one that was trained elsewhere instead. They are
exported with MCA and answer the development file at each alpha with several seeds.

The bound of MCA holds with n = a text's own tokens, which is what is served. The paper's code pads every text to 128
tokens, takes n = 128 and counts padding as work that was saved. Its alpha is therefore alpha * n / 128 here; both are
measured. Reductions are of the multiply-adds of the value projection: over real tokens, and in one column in the
paper's way, 128 tokens a text, of which even an exact model is left with few ("padding alone").

Checkpoints and bundles stay in FOLDER, and rows go to the result file one by one: the same command goes on with a run
that was stopped. The rows are printed at the end.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from attenuator import runtime
from attenuator.export.attributes import ESTIMATORS
from benchmarks.contenders import glue
from benchmarks.contenders.classifiers import command, fresh_bert, note, own_encoder, pretrained, train
from benchmarks.contenders.settings import contender
from benchmarks.measure import record
from benchmarks.measure.options import amount, count, folder
from benchmarks.measure.resumable import Rows, run, tree_of

TABLES = {"whole": "1", "half": "2", "windowed": "3"}  # of the paper, beside which each model stands
LAYERS = {"whole": 4, "half": 2}  # without --start
WINDOWED = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 1024}
WINDOW = 128
ALPHAS = (0.2, 0.4, 0.6, 1.0)
BATCH = 32


def begin(options: argparse.Namespace, key: str, model: str, rows: list[dict[str, Any]], folder: Path) -> None:
    """Writes what a classifier starts from, where an earlier run has not."""
    task = glue.TASKS[key]
    if (folder / "model.safetensors").is_file():
        return
    if model == "windowed":
        one = contender(f"softmax:window={WINDOW}")
        own_encoder(rows, task.names, one, WINDOWED | {"max_tokens": task.tokens}, folder)
    elif options.start:
        pretrained(options.start, task.names, model == "half", task.tokens, folder)
    else:
        fresh_bert(rows, task.names, LAYERS[model], task.tokens, folder)


def bundle_of(options: argparse.Namespace, key: str, model: str) -> Path:
    """The bundle of a task's classifier, trained and exported where that has not been done."""
    place: Path = options.work / key / model
    bundle = place / f"bundle-{options.estimator}"
    if (bundle / "bundle.json").is_file():
        return bundle
    trained = options.checkpoint.get(key) if model == "whole" else None
    if trained is None:
        rows = glue.read(options.data, key, "train")[: options.train_texts]
        begin(options, key, model, rows, place / "start")
        minutes = [] if options.minutes is None else ["--max-minutes", f"{options.minutes:g}"]
        pre = options.start and model != "windowed"
        rate = options.learning_rate or (5e-5 if pre else 5e-4)
        further = ["--learning-rate", f"{rate:g}", "--epochs", f"{options.epochs:g}", *minutes]
        further += ["--batch-tokens", str(options.batch_tokens)]
        trained = train(place / "start", rows, place / "trained", *further, "--threads", str(options.threads))
    command(["export", str(trained), "--attention", "mca", "--estimator", options.estimator, "--output", str(bundle)])
    return bundle


def recipe_of(options: argparse.Namespace, key: str, model: str) -> dict[str, Any]:
    """What is known of a classifier's training."""
    place: Path = options.work / key / model / "trained" / "training.json"
    if not place.is_file():
        return {"start": "elsewhere"}
    told = json.loads(place.read_text(encoding="utf-8"))
    start = options.start.name if options.start and model != "windowed" else ""
    identity = told["identity"]
    return {
        "start": start,
        "epochs": identity["epochs"],
        "learning_rate": identity["learning_rate"],
        "batch_tokens": identity["batch_tokens"],
        "most_train_texts": options.train_texts,
        "steps": told["steps"],
        "ended": told["ended"],
    }


def settings(model: str, seeds: int) -> Iterator[tuple[float, str, int]]:
    """alpha, whose n, and seed; exact answers once; under a window n is that of the window."""
    yield 0.0, "own", 0
    for alpha in ALPHAS:
        for lengths in ("own",) if model == "windowed" else ("own", "padded"):
            for seed in range(seeds):
                yield alpha, lengths, seed


def answer(
    model: runtime.Model, key: str, rows: list[dict[str, Any]], alpha: float, lengths: str, seed: int
) -> dict[str, Any]:
    """Scores and work of a whole file at one setting."""
    padded = glue.TASKS[key].tokens
    encoded = [model.encode(row["text"], row.get("text_pair"), truncate=True) for row in rows]
    tokens = np.array([len(item.token_ids) for item in encoded])
    labels, flops = [], []
    for start in range(0, len(rows), BATCH):
        batch = []
        for index, item in enumerate(encoded[start : start + BATCH], start):
            of_text = alpha if lengths == "own" else alpha * min(tokens[index] / padded, 1.0)
            knobs = model.knobs.check(model.knobs.exact() | {"alpha": of_text})
            batch.append(runtime.Row(item.token_ids, item.type_ids, knobs, seed=seed * len(rows) + index))
        results = model.run(batch)
        labels += [int(result.logits.argmax()) for result in results]
        flops += [result.outputs["value_flops"] for result in results]
    spent = float((np.array(flops) * tokens).sum())
    given, true = np.array(labels), np.array([row["label"] for row in rows])
    return {
        "scores": {name: 100 * metric(given, true) for name, metric in glue.METRICS.items()},
        "commonest": 100 * max(float(true.mean()), 1 - float(true.mean())),
        "tokens": float(tokens.mean()),
        "real": float(tokens.sum()) / spent,
        "padded": padded * len(rows) / spent,
    }


def measure(options: argparse.Namespace, kept: Rows) -> None:
    """Whatever the result file lacks, task by task."""
    for key in options.tasks:
        for model, table in TABLES.items():
            if model not in options.models or table not in glue.TASKS[key].tables:
                continue
            facts = {"task": key, "model": model}
            names = [
                facts | dict(zip(("alpha", "lengths", "seed"), each, strict=True))
                for each in settings(model, options.seeds)
            ]
            missing = [each for each in names if not kept.find(**each)]
            if not missing:
                continue
            note(f"mca_tables: {key}, {model}: {len(missing)} settings to measure")
            loaded = runtime.load(bundle_of(options, key, model), threads=options.threads, check=False)
            rows = glue.read(options.data, key, "dev")[: options.texts]
            about = {"texts": len(rows), **recipe_of(options, key, model), **tree_of(["mca"])}
            for each in tqdm(missing, desc=f"{key}, {model}", unit="setting"):
                found = answer(loaded, key, rows, each["alpha"], each["lengths"], each["seed"])
                kept.keep(each | found | about)


def checkpoint_of(text: str) -> tuple[str, Path]:
    """`TASK=FOLDER`.

    Raises:
        argparse.ArgumentTypeError: it is not that, or names what there is not.
    """
    key, _, folder = text.partition("=")
    if key not in glue.TASKS or not (Path(folder) / "config.json").is_file():
        known = ", ".join(glue.TASKS)
        raise argparse.ArgumentTypeError(f"{text!r} must be TASK=FOLDER, a task of {known}, and a checkpoint's folder")
    return key, Path(folder)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for each task")
    parser.add_argument("--work", type=folder, required=True, help="folder for what is trained")
    parser.add_argument("--tasks", nargs="+", choices=glue.TASKS, help="all that --data has by default")
    parser.add_argument("--models", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--start", type=Path, help="folder of a pretrained BERT to fine-tune")
    parser.add_argument(
        "--checkpoint", action="append", default=[], type=checkpoint_of, metavar="TASK=FOLDER", help="trained elsewhere"
    )
    parser.add_argument("--epochs", type=amount, default=3.0)
    parser.add_argument("--minutes", type=amount, help="of training for each classifier at most")
    parser.add_argument("--learning-rate", type=amount, help="5e-5 with --start, else 5e-4")
    parser.add_argument("--batch-tokens", type=count, default=4096, help="of a training step")
    parser.add_argument("--train-texts", type=count, help="texts of each training file at most")
    parser.add_argument("--texts", type=count, help="texts of each development file at most")
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--estimator", choices=ESTIMATORS["mca"], default="paper")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--output", type=Path, default=record.STUDIES / "mca_tables.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    options = parser.parse_args(arguments)
    options.checkpoint = dict(options.checkpoint)
    there = glue.present(options.data)
    options.tasks = options.tasks or there
    lacking = [key for key in options.tasks if key not in there]
    if lacking or not there:
        files = ", ".join(f"{key}/{glue.FILES[key]}" for key in lacking or glue.TASKS)
        parser.error(f"--data is '{options.data}', which has no {files}")
    if options.start and not (options.start / "config.json").is_file():
        parser.error(f"--start is '{options.start}', must be a checkpoint's folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    options = parse(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    facts = {"benchmark": "mca_tables", "estimator": options.estimator, "most_texts": options.texts}
    return run(options.output, arguments, facts, partial(measure, options), again=options.again)


if __name__ == "__main__":
    sys.exit(main())
