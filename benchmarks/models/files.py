"""Classifies a file of texts as `attenuator classify BUNDLE --input FILE --output FILE` does, beside transformers.

    python -m benchmarks.models.files checkpoints/short
    python -m benchmarks.models.files CHECKPOINT --texts FILE.jsonl --keep 0.5 --threads 2

CHECKPOINT is a classifier of transformers, such as `train_classifier.py` writes, with test.jsonl beside it; texts are
JSON lines with `text`. The contenders take turns in one process on equally many threads, all from texts to labels:
transformers' pipeline on batches of 32, as the texts come and sorted by length, and the bundle in fp32 and int8 from
file to file, its file of finished answers included. Models are loaded before. Prints texts a second and ratios, of
CPU time as well, which a busy machine changes less; needs torch and transformers (extra `bench`).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from transformers.utils import logging

from attenuator.commands.backends import BundleBackend, ClassifyOptions
from attenuator.commands.filerun import FileRun, partial_of, run_file
from attenuator.export import export
from attenuator.rows import Columns
from attenuator.runtime import CPU
from attenuator.runtime.session import cpu_count
from benchmarks.contenders.documents import BATCH_SIZE
from benchmarks.measure import record
from benchmarks.measure.kernels import in_model
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import Timing, interleave

PRECISIONS = ("fp32", "int8")


class Loaded(BundleBackend):
    """A bundle that stays loaded between the runs."""

    def close(self) -> None:
        """Does nothing."""


def contenders(
    checkpoint: Path, texts: Sequence[str], folder: Path, threads: int, keep: float | None
) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    torch.set_num_threads(threads)
    pipe = pipeline(
        "text-classification",
        model=AutoModelForSequenceClassification.from_pretrained(checkpoint).eval(),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        device="cpu",
    )
    piped = partial(pipe, batch_size=BATCH_SIZE, truncation=True)
    runs: dict[str, Callable[[], Any]] = {
        "pipeline": partial(piped, list(texts)),
        "pipeline, sorted": partial(piped, sorted(texts, key=len)),
    }
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings: dict[str, dict[str, float]] = {"": {}} | ({} if keep is None else {f", keep {keep:g}": {"keep": keep}})
    for precision in PRECISIONS:
        bundle = folder / precision
        export(str(checkpoint), attention="softmax", output=bundle, precision=precision)
        backend = Loaded(bundle, device=CPU, threads=threads)
        for name, knobs in settings.items():
            options = ClassifyOptions({"keep": 1.0, **knobs}, truncate=True)
            output = str(folder / f"{precision}.csv")
            run = FileRun([], str(source), "jsonl", Columns(), output, "csv", partial_of(output), True, 1)
            runs[f"classify, {precision}{name}"] = partial(run_file, run, lambda kept=backend: kept, options, {})
    return runs


def report(timings: dict[str, Timing], texts: int) -> str:
    """Texts a second of each contender, and how many times faster it is than the pipeline."""
    rows = []
    for name, timing in timings.items():
        wall, own = (timing.times_faster_than(timings["pipeline"], wall=each) for each in (True, False))
        each = texts / (timing.record()["wall_us"]["median"] / 1e6)
        spread = f"{wall['median']:5.2f} times the pipeline ({wall['low']:.2f} to {wall['high']:.2f})"
        rows.append(f"{name:26} {each:8.0f} texts a second, {spread}, by CPU time {own['median']:.2f}")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=60)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--texts", type=Path, help="JSON lines with text; CHECKPOINT/test.jsonl by default")
    parser.add_argument("--most", type=int, default=2000, help="texts, at most")
    parser.add_argument("--keep", type=float, help="also at this value of the knob")
    parser.add_argument("--threads", type=int, default=cpu_count())
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = options.texts or options.checkpoint / "test.jsonl"
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()[: options.most]]
    with tempfile.TemporaryDirectory() as folder:
        runs = contenders(options.checkpoint, texts, Path(folder), options.threads, options.keep)
        timings = interleave(runs, threads=options.threads, seconds=options.seconds)
        operators = in_model(Path(folder) / PRECISIONS[0])
    print(report(timings, len(texts)))
    if options.output:
        head = record.origin(sys.argv[1:] if arguments is None else arguments, operators) | record.cpu()
        rows = {name: timing.record() for name, timing in timings.items()}
        record.write(options.output, head | {"texts": len(texts), "threads": options.threads, "contenders": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
