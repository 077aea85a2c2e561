r"""MCA on classifiers of SST-2, MRPC, RTE and CoLA: scores over alpha beside Tables 1 and 2 of its paper.

    python -m benchmarks.mca_tables --data GLUE --work FOLDER --minutes 8
    python -m benchmarks.mca_tables --data GLUE --work FOLDER --tasks sst2 --checkpoint sst2=CHECKPOINT

For each task two classifiers are trained on its training file, for --minutes each, of 4 layers and of half as many
(Table 2 has DistilBERT), 256 channels, from nothing; --checkpoint takes one that was trained elsewhere instead. They
are exported with MCA and answer the development file at each alpha with several seeds.

The bound of MCA holds with n = a text's own tokens, which is what is served. The paper's code pads every text to 128
tokens, takes n = 128 and counts padding as work that was saved. Its alpha is therefore alpha * n / 128 here; both are
measured. Reductions are of the multiply-adds of the value projection: over real tokens, and in one column in the
paper's way, 128 tokens a text, of which even an exact model is left with few ("padding alone").

Everything is kept in FOLDER; the same command goes on with a run that was stopped. Prints tables in Markdown.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attenuator import runtime
from attenuator.__main__ import main as attenuator
from attenuator.journal import Journal
from benchmarks.contenders import glue
from benchmarks.report.tables import table

LAYERS = {"4 layers": 4, "2 layers": 2}
TABLE_OF = {"4 layers": "1", "2 layers": "2"}
ALPHAS = (0.2, 0.4, 0.6, 1.0)
LENGTHS = {"own": "n = own tokens", "128": "n = 128"}
BATCH = 32
PAPER = Path(__file__).parent / "paper" / "mca_glue.csv"


def note(sentence: str) -> None:
    """Says something on stderr."""
    print(f"mca_tables: {sentence}", file=sys.stderr)


def bundle_of(options: argparse.Namespace, key: str, model: str) -> Path:
    """The bundle of a task's classifier, trained and exported where that has not been done."""
    place: Path = options.work / key / model.replace(" ", "-")
    bundle = place / f"bundle-{options.estimator}"
    if (bundle / "bundle.json").is_file():
        return bundle
    trained = options.checkpoint.get(key) if model == "4 layers" else None
    if trained is None:
        trained = place / "trained"
        rows = glue.read(options.data, key, "train")[: options.texts]
        if not (place / "start" / "tokenizer.json").is_file():
            note(f"{key}, {model}: a vocabulary and a start")
            glue.begin(rows, key, LAYERS[model], place / "start")
        file = glue.write(rows, place / "train.jsonl")
        arguments = ["train", str(place / "start"), "--data", str(file), "--output", str(trained), "--truncate"]
        arguments += ["--learning-rate", "5e-4", "--max-minutes", f"{options.minutes:g}", "--epochs", "10"]
        arguments += ["--pair-column", "text_pair"] if len(glue.TASKS[key].texts) == 2 else []
        command(arguments + (["--resume"] if trained.is_dir() else []))
    command(["export", str(trained), "--attention", "mca", "--estimator", options.estimator, "--output", str(bundle)])
    return bundle


def command(arguments: list[str]) -> None:
    """Runs a command of the product.

    Raises:
        SystemExit: it failed, or was interrupted.
    """
    note(f"attenuator {' '.join(arguments)}")
    code = attenuator(arguments)
    if code:
        raise SystemExit(code)


def settings(seeds: int) -> Iterator[tuple[float, str, int]]:
    """alpha, whose n, and seed; exact answers once."""
    yield 0.0, "own", 0
    for alpha in ALPHAS:
        for lengths in LENGTHS:
            for seed in range(seeds):
                yield alpha, lengths, seed


def answer(model: runtime.Model, rows: list[dict[str, Any]], alpha: float, lengths: str, seed: int) -> dict[str, Any]:
    """Scores and work of a whole file at one setting."""
    encoded = [model.encode(row["text"], row.get("text_pair"), truncate=True) for row in rows]
    tokens = np.array([len(item.token_ids) for item in encoded])
    labels, flops = [], []
    for start in range(0, len(rows), BATCH):
        batch = []
        for index, item in enumerate(encoded[start : start + BATCH], start):
            of_text = alpha if lengths == "own" else alpha * min(tokens[index] / glue.TOKENS, 1.0)
            knobs = model.knobs.check(model.knobs.exact() | {"alpha": of_text})
            batch.append(runtime.Row(item.token_ids, item.type_ids, knobs, seed=seed * len(rows) + index))
        results = model.run(batch)
        labels += [int(result.logits.argmax()) for result in results]
        flops += [result.outputs["value_flops"] for result in results]
    spent = float((np.array(flops) * tokens).sum())
    given, true = np.array(labels), np.array([row["label"] for row in rows])
    return {
        "scores": {name: 100 * metric(given, true) for name, metric in glue.METRICS.items()},
        "tokens": float(tokens.mean()),
        "real": float(tokens.sum()) / spent,
        "padded": glue.TOKENS * len(rows) / spent,
    }


def measured(options: argparse.Namespace, journal: Journal, done: dict[tuple[Any, ...], Any]) -> None:
    """Whatever the journal lacks, task by task."""
    for key in options.tasks:
        for name in LAYERS:
            missing = [each for each in settings(options.seeds) if (key, name, *each) not in done]
            if not missing:
                continue
            model = runtime.load(bundle_of(options, key, name), threads=options.threads, check=False)
            rows = glue.read(options.data, key, "dev")[: options.texts]
            for number, each in enumerate(missing):
                note(f"{key}, {name}: setting {number + 1} of {len(missing)}: alpha {each[0]:g}, {LENGTHS[each[1]]}")
                done[(key, name, *each)] = answer(model, rows, *each)
                journal.append({"setting": [key, name, *each], "result": done[(key, name, *each)]})


def spread(values: list[float]) -> str:
    """Mean, and half the width of its 95 % interval over seeds."""
    half = 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.1f} ± {half:.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def lines(options: argparse.Namespace, done: dict[tuple[Any, ...], Any], name: str) -> Iterator[list[str]]:
    """The rows of a model's table."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        paper = {(row["table"], row["task"], row["metric"], float(row["alpha"])): row for row in csv.DictReader(file)}
    for key in options.tasks:
        task, exact = glue.TASKS[key], done[(key, name, 0.0, "own", 0)]
        for metric in task.metrics:
            first = f"{task.title}, {metric}"
            alone = f"{glue.TOKENS / exact['tokens']:.2f}"
            yield [first, "0", f"{exact['scores'][metric]:.1f}", "1.00", "", "", f"{alone} (padding alone)", "", ""]
            for alpha in ALPHAS:
                row = [first, f"{alpha:g}"]
                for lengths in LENGTHS:
                    of_seeds = [done[(key, name, alpha, lengths, seed)] for seed in range(options.seeds)]
                    row += [spread([each["scores"][metric] for each in of_seeds])]
                    row += [f"{np.mean([each['real'] for each in of_seeds]):.2f}"]
                theirs = paper[TABLE_OF[name], task.title, metric, alpha]
                padded = f"{np.mean([each['padded'] for each in of_seeds]):.2f}"
                scores = f"{theirs['result']} ({theirs['baseline']})"
                yield [*row, padded, scores, theirs["flops_reduction_x"]]


def checkpoints(given: list[str]) -> dict[str, Path]:
    """`TASK=FOLDER` by task."""
    pairs = dict(item.partition("=")[::2] for item in given)
    return {key: Path(folder) for key, folder in pairs.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with sst2, mrpc, rte and cola")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is trained and measured")
    parser.add_argument("--tasks", nargs="+", choices=glue.TASKS, default=list(glue.TASKS))
    parser.add_argument("--checkpoint", action="append", default=[], metavar="TASK=FOLDER", help="of 4 layers or more")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training for each classifier")
    parser.add_argument("--texts", type=int, help="texts of each file at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--estimator", choices=("sampled", "deterministic", "paper"), default="paper")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    options.checkpoint = checkpoints(options.checkpoint)
    options.work.mkdir(parents=True, exist_ok=True)
    about = {"data": str(options.data.resolve()), "texts": options.texts, "estimator": options.estimator}
    advice = "give another folder as --work"
    with Journal(options.work / "measured.jsonl", about, other="is of a run with other options", advice=advice) as kept:
        done = {tuple(record["setting"]): record["result"] for _, record in kept.records()}
        measured(options, kept, done)
    heads = ["task", "alpha"]
    for lengths in LENGTHS.values():
        heads += [f"score, {lengths}", "reduction"]
    heads += ["n = 128, counted as the paper", "paper: score (exact)", "paper: reduction"]
    for name in LAYERS:
        print(f"\n{name}, estimator {options.estimator}, beside Table {TABLE_OF[name]}\n")
        print(table(heads, list(lines(options, done, name))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
