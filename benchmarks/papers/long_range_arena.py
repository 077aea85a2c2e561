r"""Long Range Arena: ListOps, Text and Pathfinder, learnt with every attention that the own encoder trains with.

    python -m benchmarks.papers.long_range_arena --data IMDB --work FOLDER --minutes 60   # goes on where it was stopped
    python -m benchmarks.papers.long_range_arena --size lra --work FOLDER --tasks listops --attentions softmax yoso \
        yoso:num_hashes=0 softmax:window=256

The benchmark's model: 2 layers of 64 channels with 2 heads, a feed-forward width of 128, mean pooling. Every attention
gets the same data, the same recipe and the same seeds; knobs are their operators' defaults, or as named with the
attention: KEY:NAME=VALUE,NAME=VALUE with knobs, attributes, sizes or conv_size. ListOps and Pathfinder are drawn by
their published rules; Text is read from IMDB, a folder with `train.jsonl.gz` and `test.jsonl.gz`, a line of which has
`text` and `label`, 0 or 1. Size `lra` has the published lengths and steps, days of one core; `medium` takes up to
eight minutes of CPU time a model, Reformer twenty on Pathfinder; `small` takes seconds and ranks nothing.

A row of the result file is one trained model: its accuracy on the test file after the last step. A run trains what the
file lacks, seed by seed; a model that --minutes cut short, or Ctrl-C, goes on from FOLDER. The bar is over everything
that is to be trained, in tokens, and its estimate that of the whole. The rows are printed at the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attenuator.export.encoder import EncoderConfig
from attenuator.export.encoder_attention import ATTENTIONS, training_mix
from benchmarks.contenders.settings import METAVAR, Contender, trainable
from benchmarks.measure import record
from benchmarks.measure.options import amount, count, folder
from benchmarks.measure.resumable import Rows, run, tree_of
from benchmarks.papers.lra.tasks import SIZES, TASKS, Examples, Size, examples
from benchmarks.papers.lra.training import SHAPE, Run, accuracy

FILES = ("train.jsonl.gz", "test.jsonl.gz")  # of the reviews


def config(one: Contender, task: str, size: Size) -> EncoderConfig:
    """The model for a task."""
    of_task = TASKS[task]
    shape = {"vocab_size": of_task.vocabulary, "num_labels": of_task.labels, "max_tokens": size.longest}
    return one.config(**shape, **SHAPE)


def trained(
    one: Contender, task: str, seed: int, end: float, options: argparse.Namespace, bar: tqdm[Any]
) -> dict[str, Any] | None:
    """A model's accuracy; None where the time ended before its training."""
    size = SIZES[options.size][task]
    places = {"data": options.data, "work": options.work / "data"}
    data, test = (examples(task, size, split, **places) for split in ("train", "test"))
    named = [task, options.size, one.key, *(f"{name}={value}" for name, value in one.settings.items()), str(seed)]
    run = Run(config(one, task, size), size, seed, options.work / "runs" / f"{'-'.join(named)}.pt")
    bar.set_description(" ".join(named))
    told = 0

    def tell(step: int, loss: float) -> None:
        nonlocal told
        bar.update((step - told) * size.batch * size.longest)
        told = step
        bar.set_postfix_str(f"step {step} of {size.steps}" + (f", loss {loss:.3f}" if step else ""), refresh=False)

    tell(run.step, run.loss)
    if not run.train(data, end, tell):
        return None
    figures = {"accuracy": accuracy(run.model, test, size.batch), "loss": run.loss, "train_cpu_s": run.cpu_s}
    run.kept.unlink(missing_ok=True)
    return figures | {"commonest": commonest(test)}


def commonest(data: Examples) -> float:
    """The share of the label that most sequences have: what a model that learnt nothing can reach."""
    return float(np.bincount(data.labels).max() / len(data.labels))


def measure(rows: Rows, options: argparse.Namespace) -> bool:
    """Trains what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * options.minutes
    sizes = SIZES[options.size]
    every = [(seed, task, one) for seed in range(options.seeds) for task in options.tasks for one in options.attentions]

    def facts(seed: int, task: str, one: Contender) -> dict[str, Any]:
        about = {"task": task, "size": options.size, **asdict(sizes[task])}
        return about | {"attention": one.key, "settings": one.settings, "seed": seed}

    todo = [each for each in every if not rows.find(**facts(*each))]
    tokens = sum(sizes[task].steps * sizes[task].batch * sizes[task].longest for _, task, _ in todo)
    with tqdm(total=tokens, unit=" tokens", unit_scale=True, mininterval=5.0, smoothing=0.0, disable=not todo) as bar:
        for seed, task, one in todo:
            if time.monotonic() >= end:
                return False
            # Only where training computes through the operator's own kernels do its figures depend on them.
            tree = tree_of([one.key] if training_mix(one.key) else [])
            figures = trained(one, task, seed, end, options, bar)
            if figures is None:
                return False
            rows.keep(facts(seed, task, one) | figures | tree)
            bar.write(f"{task}, {one.name}, seed {seed}: {figures['accuracy']:.3f}", file=sys.stderr)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the reviews, for Text")
    parser.add_argument("--work", type=folder, required=True, help="folder for what is drawn and for unfinished models")
    parser.add_argument("--minutes", type=amount, default=60, help="to spend; the same command goes on")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="all by default, Text where there is --data")
    parser.add_argument("--attentions", nargs="+", type=trainable, metavar=METAVAR, help="all by default")
    parser.add_argument("--seeds", type=count, default=3)
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--output", type=Path, default=record.STUDIES / "long_range_arena.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    options = parser.parse_args(arguments)
    lacking = [name for name in FILES if options.data and not (options.data / name).is_file()]
    if lacking:
        parser.error(f"--data is '{options.data}', which has no {lacking[0]}")
    if "text" in (options.tasks or []) and not options.data:
        parser.error("--tasks names text, which is read from --data, which is missing")
    options.tasks = options.tasks or [key for key, task in TASKS.items() if task.draw or options.data]
    options.attentions = options.attentions or [trainable(key) for key in ATTENTIONS]
    torch.set_num_threads(options.threads)
    facts = {"benchmark": "long_range_arena", "shape": SHAPE, "threads": options.threads}
    try:
        return run(options.output, arguments, facts, lambda rows: measure(rows, options), again=options.again)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
