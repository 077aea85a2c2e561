"""Times one trained classifier as people serve it today beside the same as a bundle: documents a second, and labels.

    python -m benchmarks.models.end_to_end checkpoints/short checkpoints/long
    python -m benchmarks.models.end_to_end CHECKPOINT --texts FILE.jsonl --threads 1 --quick

CHECKPOINT is a BERT classifier of transformers, such as `train_classifier.py` writes; its texts with labels (JSON lines
with `text` and `label`) are CHECKPOINT/test.jsonl unless `--texts` names others. Export chooses schedule and default of
`keep` from the first of them, and all figures come from the others. The contenders classify the same documents in one
process, in turns: PyTorch and the `transformers` pipeline on padded batches, ONNX Runtime with its transformer
optimizer in fp32 and in dynamic int8 and without it in static int8 and, where it is installed, OpenVINO in fp32, bf16
and int8, on batches as they arrive and sorted by length, and the bundle exactly, with `keep`, in int8, and with both.
All read token ids but the pipeline, which tokenises. Then the same for shapes with random weights, for time alone: at
lengths that a checkpoint's position table does not reach, and of BERT-base. Writes
benchmarks/results/end_to_end-ISA.json. Needs torch, transformers and scipy (extra `bench`).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import BertTokenizerFast
from transformers.utils import logging

from benchmarks.contenders import documents, served
from benchmarks.contenders.documents import Documents
from benchmarks.contenders.graphs import INT8_OPERATORS
from benchmarks.measure.cases import Row, records
from benchmarks.measure.intervals import share
from benchmarks.measure.program import Step, cpu_parser_for, run
from benchmarks.measure.timing import Timing, interleave

LENGTHS = (32, 128, 512, 2048)
# Tokens of the documents that are timed, those documents at most, and tokens of those whose labels are compared.
TIMED_TOKENS, MOST_TIMED, COMPARED_TOKENS = 6000, 1000, 60_000
# Export chooses by that many texts, at most by half of them: by few hundred it takes luck for agreement.
MOST_CALIBRATION_TEXTS = 1000
# Random weights: layers, channels, heads, lengths, tokens that are timed. BERT-base takes seconds for a thousand.
SHAPES = {
    "4 x 256": (4, 256, 4, LENGTHS, 4000),
    "BERT-base": (12, 768, 12, (128, 512), 1000),
}
QUICK = 6  # times fewer documents
BASELINES = {"over_exact": served.EXACT, "over_ort": served.ORT_FP32, "over_ort_sorted": served.ORT_FP32_SORTED}
# Largest difference of logits between exact contenders, relative to the largest logit.
TOLERANCE = 2e-3
# CPU seconds of one multiply-add in fp32, for the progress bar.
SECONDS_PER_FLOP = 1 / 15e9


def timings_of(contenders: served.Runs, threads: int, seconds: float) -> dict[str, Timing]:
    """Interleaved passes over the documents."""
    torch.set_num_threads(threads)
    return interleave(contenders, threads=threads, seconds=seconds)


def timed(model: served.Served, chosen: Documents, threads: int, seconds: float) -> Row:
    """Every contender's time over the documents, and its speed beside the baselines."""
    contenders = model.contenders(chosen, threads)
    errors = model.checked(contenders, TOLERANCE)
    timings = timings_of(contenders, threads, seconds)
    row: Row = {
        "model": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "cut": chosen.cut,
        "mean_tokens": float(chosen.lengths.mean()),
        "documents": len(chosen.ids),
        "threads": threads,
        "keep": model.keep_values,
        "keep_default": model.keep_default,
        "merged_default": model.merged_default,
        "contenders": records(timings),
        "errors": errors,
    }
    for field, baseline in BASELINES.items():
        row[field] = {name: timings[name].times_faster_than(timings[baseline], wall=threads > 1) for name in timings}
    return row


def compared(model: served.Served, chosen: Documents, threads: int) -> Row:
    """Share of right labels, and of labels that are those of the exact bundle."""
    torch.set_num_threads(threads)
    contenders = model.contenders(chosen, threads)
    labels = {name: contenders[name]().argmax(1) for name in contenders if name not in served.SLOW_TWINS}
    return {
        name: {"agreement": share(answers == labels[served.EXACT]), "accuracy": share(answers == chosen.labels)}
        for name, answers in labels.items()
    }


def trained(model: served.Served, rows: Any, cut: int, threads: int, options: argparse.Namespace) -> Row:
    """One checkpoint over its texts, cut at a length."""
    fewer = QUICK if options.quick else 1
    every = documents.tokenised(rows, model.tokenizer, cut, model.model.config.label2id)
    row = timed(model, every.first(TIMED_TOKENS // fewer, MOST_TIMED), threads, options.seconds)
    if threads == min(options.threads):  # the labels are the same on every number of threads
        row["labels"] = compared(model, every.first(options.compared_tokens // fewer, len(every.ids)), threads)
    return row


def random_weights(model: served.Served, length: int, tokens: int, threads: int, options: argparse.Namespace) -> Row:
    """One shape over random tokens."""
    chosen = documents.drawn(length, tokens // (QUICK if options.quick else 1), model.model.config.vocab_size)
    return timed(model, chosen, threads, options.seconds)


def cuts(checkpoint: Path, lengths: Sequence[int]) -> list[int]:
    """Lengths at which a checkpoint's texts are cut: those below what it was trained with, and that."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    longest = min(BertTokenizerFast.from_pretrained(checkpoint).model_max_length, config["max_position_embeddings"])
    return [*(length for length in lengths if length < longest), longest]


def seconds_of(
    layers: int, hidden: int, tokens: float, length: int, threads: int, options: argparse.Namespace
) -> float:
    """What a row takes, roughly: four passes of all contenders."""
    flops = layers * tokens * (12 * hidden**2 + 2 * length * hidden)
    return 2 + max(options.seconds, 40 * flops * SECONDS_PER_FLOP / threads / (QUICK if options.quick else 1))


def steps(options: argparse.Namespace, folder: Path) -> Iterator[Step]:
    """Every checkpoint and shape that was asked for."""
    texts = options.texts or [checkpoint / "test.jsonl" for checkpoint in options.checkpoints]
    for checkpoint, path in zip(options.checkpoints, texts, strict=True):
        rows = documents.read(path)
        chosen_by = min(MOST_CALIBRATION_TEXTS, len(rows) // 2)
        calibration = None if options.quick else folder / f"{checkpoint.name}.jsonl"
        if calibration:
            documents.write(calibration, rows[:chosen_by])
        place, schedule = folder / checkpoint.name, options.schedule
        merge = {"merge": options.merge}
        make = cache(partial(served.of_checkpoint, checkpoint, place, calibration, options.keep, schedule, **merge))
        for threads in options.threads:
            for cut in cuts(checkpoint, options.lengths or LENGTHS):
                work = partial(
                    lambda make, *more: trained(make(), *more), make, rows[chosen_by:], cut, threads, options
                )
                tokens = TIMED_TOKENS + options.compared_tokens / 4
                yield Step("texts", f"{checkpoint.name}, {cut} tokens, {threads} thread(s)", work,
                           seconds_of(4, 256, tokens, cut, threads, options))  # fmt: skip
    for name in options.shapes:
        layers, hidden, heads, lengths, tokens = SHAPES[name]
        size = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        make = cache(
            partial(served.of_shape, name, folder / name, max(options.lengths or lengths), options.keep, **size)
        )
        for threads in options.threads:
            for length in options.lengths or lengths:
                work = partial(
                    lambda make, *more: random_weights(make(), *more), make, length, tokens, threads, options
                )
                yield Step("shapes", f"{name}, {length} tokens, {threads} thread(s)", work,
                           seconds_of(layers, hidden, tokens, length, threads, options))  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = cpu_parser_for(__doc__, seconds=8.0)
    parser.add_argument("checkpoints", nargs="*", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--texts", nargs="+", type=Path, metavar="FILE", help="one for each CHECKPOINT")
    parser.add_argument("--threads", nargs="+", type=int, default=(1,))
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES), help="with random weights")
    parser.add_argument("--lengths", nargs="+", type=int, help="at which texts are cut, and of the shapes")
    parser.add_argument("--keep", nargs="+", type=float, default=(0.5,), help="values beside the bundle's default")
    parser.add_argument("--schedule", help="of keep, as in export; chosen by the first texts by default")
    parser.add_argument("--merge", action="store_true", help="also merge the tokens that keep leaves out")
    parser.add_argument("--compared-tokens", type=int, default=COMPARED_TOKENS, help="of texts whose labels count")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} times fewer documents, keep's own default unasked"
    )
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        operators = ("kept_lengths", "pool", "select", "softmax", *INT8_OPERATORS)
        return run("end_to_end", parser, arguments, lambda options: list(steps(options, Path(folder))), operators)


if __name__ == "__main__":
    sys.exit(main())
