r"""Long Range Arena: ListOps, Text and Pathfinder, learnt with every attention that the own encoder trains with.

    python -m benchmarks.long_range_arena --data IMDB --work FOLDER --minutes 60     # goes on where it was stopped
    python -m benchmarks.long_range_arena --size lra --work FOLDER --tasks listops --attentions softmax yoso \
        yoso:num_hashes=0 softmax:window=256

The benchmark's model: 2 layers of 64 channels with 2 heads, a feed-forward width of 128, mean pooling. Every attention
gets the same data, the same recipe and the same seeds; knobs are their operators' defaults, or as named with the
attention: KEY:NAME=VALUE,NAME=VALUE with knobs, attributes, sizes or conv_size. ListOps and Pathfinder are drawn by
their published rules; Text is read from IMDB, a folder with `train.jsonl.gz` and `test.jsonl.gz`, a line of which has
`text` and `label`, 0 or 1. Size `lra` has the published lengths and steps, days of one core; `small` takes
seconds of CPU time a model and ranks nothing.

A row of the result file is one trained model: its accuracy on the test file after the last step. A run trains what the
file lacks, seed by seed; a model that --minutes cut short goes on from FOLDER. docs/long-range-arena.md is made of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from attenuator.export.encoder import EncoderConfig
from attenuator.export.encoder_attention import ATTENTIONS, attributes_of, sizes_of, training_mix
from attenuator.ops.spec import Attribute, Knob
from benchmarks.contenders.encoders import defaults
from benchmarks.lra.tasks import SIZES, TASKS, Examples, Size, examples
from benchmarks.lra.training import SHAPE, Run, accuracy
from benchmarks.measure import record
from benchmarks.measure.resumable import Rows, tree_of

CONV_SIZE = Attribute("conv_size", "int", "taps of the convolution, for operators that have one", default=0)
TYPES = {"int": int, "int32": int, "float": float, "string": str}


@dataclass(frozen=True)
class Contender:
    """An attention and what is set of it.

    Attributes:
        key: of the operator.
        fields: of the encoder's config: `knobs`, `attributes`, `sizes`, `conv_size`.
    """

    key: str
    fields: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that is set, by name."""
        found: dict[str, Any] = {}
        for name, value in self.fields.items():
            found |= value if isinstance(value, dict) else {name: value}
        return found

    def config(self, task: str, size: Size) -> EncoderConfig:
        """The model for a task."""
        of_task = TASKS[task]
        return EncoderConfig(
            vocab_size=of_task.vocabulary,
            num_labels=of_task.labels,
            max_tokens=size.longest,
            attention=self.key,
            **SHAPE,
            **self.fields,
        )


def contender(text: str) -> Contender:
    """What `KEY:NAME=VALUE,...` names; knobs that it does not name have their defaults.

    Raises:
        argparse.ArgumentTypeError: it names what there is not, or a value that does not fit.
    """
    key, _, rest = text.partition(":")
    if key not in ATTENTIONS:
        raise argparse.ArgumentTypeError(f"attention is {key!r}, must be one of: {', '.join(ATTENTIONS)}")
    fields: dict[str, Any] = {"knobs": defaults(key), "attributes": {}, "sizes": {}}
    known: dict[str, tuple[str, Knob | Attribute]] = {CONV_SIZE.name: ("", CONV_SIZE)}
    known |= {knob.name: ("knobs", knob) for knob in ATTENTIONS[key].knobs}
    known |= {name: ("attributes", item) for name, item in attributes_of(key).items()}
    known |= {name: ("sizes", item) for name, item in sizes_of(key).items()}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        if name not in known:
            raise argparse.ArgumentTypeError(f"{key} has no {name!r}, only: {', '.join(known)}")
        field, what = known[name]
        try:
            typed = TYPES[what.dtype if isinstance(what, Knob) else what.kind](value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name} of {key} is {value!r}, must be a number") from None
        if field:
            fields[field][name] = typed
        else:
            fields[name] = typed
    made = Contender(key, fields)
    try:
        made.config("listops", SIZES["small"]["listops"])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return made


def trained(one: Contender, task: str, seed: int, end: float, options: argparse.Namespace) -> dict[str, Any] | None:
    """A model's accuracy; None where the time ended before its training."""
    size = SIZES[options.size][task]
    places = {"data": options.data, "work": options.work / "data"}
    data, test = (examples(task, size, split, **places) for split in ("train", "test"))
    named = [task, options.size, one.key, *(f"{name}={value}" for name, value in one.settings.items()), str(seed)]
    run = Run(one.config(task, size), size, seed, options.work / "runs" / f"{'-'.join(named)}.pt")
    with tqdm(total=size.steps, initial=run.step, desc=" ".join(named), mininterval=5.0) as bar:

        def tell(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

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
    for seed in range(options.seeds):
        for task in options.tasks:
            for one in options.attentions:
                facts = {"task": task, "size": options.size, **asdict(SIZES[options.size][task])}
                facts |= {"attention": one.key, "settings": one.settings, "seed": seed}
                if rows.find(**facts):
                    continue
                if time.monotonic() >= end:
                    return False
                # Only where training computes through the operator's own kernels do its figures depend on them.
                tree = tree_of([one.key] if training_mix(one.key) else [])
                figures = trained(one, task, seed, end, options)
                if figures is None:
                    return False
                rows.keep(facts | figures | tree)
                print(f"{task}, {one.key}, seed {seed}: {figures['accuracy']:.3f}", file=sys.stderr, flush=True)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the reviews, for Text")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is drawn and for unfinished models")
    parser.add_argument("--minutes", type=float, default=60, help="to spend; the same command goes on")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="all by default, Text where there is --data")
    parser.add_argument(
        "--attentions", nargs="+", type=contender, metavar="KEY[:NAME=VALUE,...]", help="all by default"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=record.RESULTS / "long_range_arena.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    options = parser.parse_args(arguments)
    options.tasks = options.tasks or [key for key, task in TASKS.items() if task.draw or options.data]
    options.attentions = options.attentions or [contender(key) for key in ATTENTIONS]
    torch.set_num_threads(options.threads)
    head = record.origin(sys.argv[1:] if arguments is None else arguments, []) | record.cpu()
    facts = {"benchmark": "long_range_arena", "shape": SHAPE, "threads": options.threads}
    try:
        rows = Rows(options.output, head, facts, again=options.again)
        complete = measure(rows, options)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        complete = False
    print(f"{options.output}{'' if complete else ': the same command goes on'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
