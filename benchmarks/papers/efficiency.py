"""Time and peak memory of an encoder with every attention, in training and in inference, at the YOSO paper's shape.

    python -m benchmarks.papers.efficiency --minutes 30        # goes on where it was stopped
    python -m benchmarks.papers.efficiency --minutes 2 --most-training 256 --most-inference 1024 --output FILE.json

    python -m benchmarks.papers.efficiency --attentions yoso yoso:num_hashes=8 softmax:window=256 --output FILE.json

6 layers, 256 channels, 4 heads, feed-forward 1024; one sequence, fp32. Every attention that the own encoder can have,
and Longformer's, softmax under a window; knobs at their operators' defaults, or as named: KEY:NAME=VALUE,NAME=VALUE. A
training step is forward and backward through the own encoder's PyTorch code, or the operators' own gradient where there
is one; inference is the exported graph in ONNX Runtime. Each attention has a process of its own for each step, which
goes through the lengths; a time is CPU time on one thread, the shortest of a few, memory by how much a run lifts
resident memory at its peak (weights and their gradients are there before). A length that would take longer than
--longest seconds or more than --most-gib, by the fourfold of the one before, is left out and named.

The result file is written row by row, and a run measures what it lacks: operators that have come since, too, and with
--renew also what was measured with kernels that have changed since. The rows are printed at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from attenuator.export.encoder_attention import training_mix
from benchmarks.contenders.encoders import Shape, inference, training_step
from benchmarks.contenders.settings import BY_KEY, METAVAR, Contender, contender
from benchmarks.measure import record
from benchmarks.measure.options import amount, count
from benchmarks.measure.resumable import Rows, is_outdated, run, tree_of
from benchmarks.operators.peak_memory import peak_mib

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(layers=6, hidden=256, heads=4, feed_forward=1024, max_tokens=65_536)
FIRST, MOST_TRAINING, MOST_INFERENCE = 128, 4096, 65_536
WARM_UP, ROUNDS, ROUNDS_S = 64, 5, 1.0
GROWTH = 4.0  # of time and memory as the length doubles, at most
# Longformer's attention is softmax under a window: 512 keys, as in the YOSO paper's tables.
ATTENTIONS = (*BY_KEY, "softmax:window=256")
STEPS = ("training", "inference")
# Freed memory goes back to the system at once, so that a run's peak stands out.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}


def lengths_of(step: str, most: int) -> list[int]:
    """Doubling lengths up to the longest of a step."""
    return [FIRST << power for power in range(32) if FIRST << power <= most]


def rows(one: Contender, step: str, lengths: list[int], longest_s: float, most_gib: float) -> Iterator[dict[str, Any]]:
    """Time and memory at each length, in this process, until one would take too much."""
    import torch

    torch.set_num_threads(1)
    run = None if step == "training" else inference(one, SHAPE, 1)
    trim = ctypes.CDLL(None).malloc_trim
    expected_s = expected_gib = 0.0
    for tokens in lengths:
        if expected_s > longest_s or expected_gib > most_gib:
            yield {"n": tokens, "left_out": "by the length before", "s": expected_s, "gib": expected_gib}
            return
        if step == "training":  # an encoder for this length: that of projections over the length decides their size
            run = training_step(one, replace(SHAPE, max_tokens=tokens))
        assert run is not None
        run(WARM_UP)
        trim(0)
        seconds: list[float] = []
        begun = time.monotonic()
        peak = peak_mib(partial(_time, run, tokens, seconds))
        while len(seconds) < ROUNDS and sum(seconds) < ROUNDS_S:
            _time(run, tokens, seconds)
        expected_s, expected_gib = GROWTH * min(seconds), GROWTH * peak / 1024
        elapsed = (time.monotonic() - begun) / sum(seconds)  # 1 on an idle machine
        yield {"n": tokens, "ms": 1e3 * min(seconds), "mib": peak, "rounds": len(seconds), "elapsed": elapsed}


def _time(run: Callable[[int], None], tokens: int, seconds: list[float]) -> None:
    begun = time.process_time()
    run(tokens)
    seconds.append(time.process_time() - begun)


def child(one: Contender, step: str, lengths: list[int], options: argparse.Namespace, seconds: float) -> Iterator[Any]:
    """The same in a fresh process, row by row; an error is a row as well."""
    command = [sys.executable, "-m", "benchmarks.papers.efficiency", "--one", one.name, step, *map(str, lengths)]
    command += ["--longest", str(options.longest), "--most-gib", str(options.most_gib)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **MALLOC}
    ) as process:
        assert process.stdout
        assert process.stderr
        try:
            end = time.monotonic() + seconds
            for line in process.stdout:
                yield json.loads(line)
                if time.monotonic() > end:
                    process.terminate()
                    return
            error = process.stderr.read().strip().splitlines()
            if process.wait():
                reason = error[-1][:200] if error else f"ended with code {process.returncode}"
                yield {"n": 0, "left_out": reason}
        finally:
            process.terminate()


def holds(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether a row need not be measured: what was left out for its time may fit by now."""
    if "left_out" in row and "s" in row:
        return bool(row["s"] > options.longest or row["gib"] > options.most_gib)
    return not (options.renew and is_outdated(row))


def missing(options: argparse.Namespace, kept: Rows, one: Contender, step: str) -> list[int]:
    """Lengths that are to be measured, as far as the first that is left out."""
    held = [row for row in kept.find(**facts_of(one, step)) if holds(row, options)]
    known = {row["n"] for row in held}
    end = min((row["n"] for row in held if "left_out" in row), default=sys.maxsize)
    most = options.most_training if step == "training" else options.most_inference
    return [tokens for tokens in lengths_of(step, most) if tokens not in known and tokens < end]


def facts_of(one: Contender, step: str) -> dict[str, Any]:
    """What names an attention's rows."""
    return {"attention": one.key, "settings": one.settings, "step": step}


def measure(options: argparse.Namespace, kept: Rows) -> bool:
    """Measures what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * options.minutes
    todo = [
        (one, step, lengths)
        for step in options.steps
        for one in options.attentions
        if (step == "inference" or one.key == one.trained_with) and (lengths := missing(options, kept, one, step))
    ]
    with tqdm(total=sum(len(lengths) for *_, lengths in todo), unit="row", disable=not todo) as bar:
        for one, step, lengths in todo:
            if time.monotonic() > end:
                return False
            bar.set_postfix_str(f"{step}: {one.name}")
            facts = facts_of(one, step)
            if step == "training":
                facts["through"] = "operator" if training_mix(one.key) else "PyTorch"
            tree = tree_of([one.key])
            for row in child(one, step, lengths, options, end - time.monotonic()):
                kept.keep({**facts, **row, **tree}, instead_of={**facts_of(one, step), "n": row["n"]})
                bar.update(len(lengths) - lengths.index(row["n"]) if "left_out" in row and row["n"] else 1)
    return not any(missing(options, kept, one, step) for one, step, _ in todo)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=amount, default=30, help="to spend; the same command goes on")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--attentions", nargs="+", type=contender, metavar=METAVAR, help="all by default")
    parser.add_argument("--most-training", type=count, default=MOST_TRAINING, help="tokens")
    parser.add_argument("--most-inference", type=count, default=MOST_INFERENCE, help="tokens")
    parser.add_argument("--longest", type=amount, default=20, help="seconds that one run may take")
    parser.add_argument("--most-gib", type=amount, default=8, help="memory that one run may take")
    parser.add_argument("--output", type=Path, default=record.STUDIES / "efficiency.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    parser.add_argument("--renew", action="store_true", help="measure again what kernels have changed of since")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        name, step, *lengths = options.one
        limits = options.longest, options.most_gib
        for row in rows(contender(name), step, [int(tokens) for tokens in lengths], *limits):
            print(json.dumps(row), flush=True)
        return 0
    options.attentions = options.attentions or [contender(name) for name in ATTENTIONS]
    facts = {"benchmark": "efficiency", "shape": asdict(SHAPE)}
    return run(options.output, arguments, facts, partial(measure, options), again=options.again)


if __name__ == "__main__":
    sys.exit(main())
