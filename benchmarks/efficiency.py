"""Time and peak memory of an encoder with every attention, in training and in inference, at the YOSO paper's shape.

    python -m benchmarks.efficiency --minutes 30        # goes on where it was stopped; then `make gen`
    python -m benchmarks.efficiency --minutes 2 --most-training 256 --most-inference 1024 --output FILE.json

6 layers, 256 channels, 4 heads, feed-forward 1024; one sequence, fp32, every knob at its operator's default. A training
step is forward and backward through the own encoder's PyTorch code, or the operators' own gradient where there is one;
inference is the exported graph in ONNX Runtime. Each attention has a process of its own for each step, which goes
through the lengths; a time is CPU time on one thread, the shortest of a few, memory by how much a run lifts resident
memory at its peak (weights and their gradients are there before). A length that would take longer than --longest
seconds, by the fourfold of the one before, is left out. The result file is written row by row, and a run measures what
it lacks: operators that have come since, too. docs/efficiency.md is made of it.
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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attenuator.export.encoder_attention import ATTENTIONS as TRAINABLE
from benchmarks.contenders.encoders import BY_KEY, Shape, defaults, inference, training_step
from benchmarks.measure import record
from benchmarks.measure.resumable import Rows, tree_of
from benchmarks.peak_memory import peak_mib

ROOT = Path(__file__).resolve().parents[1]
SHAPE = Shape(layers=6, hidden=256, heads=4, feed_forward=1024, max_tokens=65_536)
FIRST, MOST_TRAINING, MOST_INFERENCE = 128, 4096, 65_536
WARM_UP, ROUNDS, ROUNDS_S = 64, 5, 1.0
GROWTH = 4.0  # of time as the length doubles, at most
STEPS = ("training", "inference")
# Freed memory goes back to the system at once, so that a run's peak stands out.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}


def lengths_of(step: str, most: int) -> list[int]:
    """Doubling lengths up to the longest of a step."""
    return [FIRST << power for power in range(32) if FIRST << power <= most]


def rows(key: str, step: str, lengths: list[int], longest_s: float) -> Iterator[dict[str, Any]]:
    """Time and memory at each length, in this process, until one would take too long."""
    import torch

    torch.set_num_threads(1)
    run = None if step == "training" else inference(key, SHAPE, 1, defaults(key))
    trim = ctypes.CDLL(None).malloc_trim
    expected = 0.0
    for tokens in lengths:
        if expected > longest_s:
            yield {"n": tokens, "left_out": f"about {expected:.0f} s by the length before"}
            return
        if step == "training":  # an encoder for this length: that of projections over the length decides their size
            run = training_step(key, replace(SHAPE, max_tokens=tokens))
        assert run is not None
        run(WARM_UP)
        trim(0)
        seconds: list[float] = []
        peak = peak_mib(partial(_time, run, tokens, seconds))
        while len(seconds) < ROUNDS and sum(seconds) < ROUNDS_S:
            _time(run, tokens, seconds)
        expected = GROWTH * min(seconds)
        yield {"n": tokens, "ms": 1e3 * min(seconds), "mib": peak, "rounds": len(seconds)}


def _time(run: Callable[[int], None], tokens: int, seconds: list[float]) -> None:
    begun = time.process_time()
    run(tokens)
    seconds.append(time.process_time() - begun)


def child(key: str, step: str, lengths: list[int], options: argparse.Namespace, seconds: float) -> Iterator[Any]:
    """The same in a fresh process, row by row; an error is a row as well."""
    command = [sys.executable, "-m", "benchmarks.efficiency", "--one", key, step, *map(str, lengths)]
    command += ["--longest", str(options.longest)]
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


def measure(options: argparse.Namespace, kept: Rows) -> bool:
    """Measures what is missing; whether nothing is missing in the end."""
    end = time.monotonic() + 60 * options.minutes
    for step in options.steps:
        most = options.most_training if step == "training" else options.most_inference
        for key in options.attentions:
            if step == "training" and key not in TRAINABLE:
                continue
            mine = kept.find(attention=key, step=step)
            known = {row["n"] for row in mine}
            missing = [tokens for tokens in lengths_of(step, most) if tokens not in known]
            if not missing or any("left_out" in row for row in mine):
                continue
            if time.monotonic() > end:
                return False
            print(f"{step}: {key}", file=sys.stderr, flush=True)
            tree = tree_of([key])
            for row in child(key, step, missing, options, end - time.monotonic()):
                kept.keep({"attention": key, "step": step, "knobs": defaults(key), **row, **tree})
    return True


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="to spend; the same command goes on")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--attentions", nargs="+", choices=BY_KEY, default=[*BY_KEY])
    parser.add_argument("--most-training", type=int, default=MOST_TRAINING, help="tokens")
    parser.add_argument("--most-inference", type=int, default=MOST_INFERENCE, help="tokens")
    parser.add_argument("--longest", type=float, default=20, help="seconds that one run may take")
    parser.add_argument("--output", type=Path, default=record.RESULTS / "efficiency.json")
    parser.add_argument("--again", action="store_true", help="measure what the result file has as well")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        key, step, *lengths = options.one
        for row in rows(key, step, [int(tokens) for tokens in lengths], options.longest):
            print(json.dumps(row), flush=True)
        return 0
    head = record.origin(sys.argv[1:] if arguments is None else arguments, []) | record.cpu()
    facts = {"benchmark": "efficiency", "shape": vars_of(SHAPE)}
    try:
        kept = Rows(options.output, head, facts, again=options.again)
    except ValueError as error:
        parser.error(str(error))
    try:
        complete = measure(options, kept)
    except KeyboardInterrupt:
        complete = False
    print(f"{options.output}{'' if complete else ': the same command goes on'}", file=sys.stderr)
    return 0


def vars_of(shape: Shape) -> dict[str, int]:
    """A shape's fields."""
    return {name: getattr(shape, name) for name in Shape.__slots__}


if __name__ == "__main__":
    sys.exit(main())
