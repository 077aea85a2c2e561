"""Times whole models on a CUDA device: the bundled ones with mixed knobs, and larger encoders beside exact attention.

    python -m benchmarks.cuda.models
    python -m benchmarks.cuda.models --sections models --bundles examples/bundles/contracts --lengths 8192

Each batch of a bundle goes through the runtime that `attenuator serve --device cuda` uses, from token ids in host
memory to logits in host memory: elapsed time, one batch at a time. Rows have different lengths and different knobs.
Before timing, the logits of the exact value must agree with the CPU's, and with those of each row in a batch of its
own. Encoders are untrained, in fp16, one sequence at a time: device time. Writes
benchmarks/results/cuda_models-CARD.json.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.bundle import read_manifest
from attenuator.runtime import Model, Row, load
from benchmarks.cuda import encoders as cuda_encoders
from benchmarks.cuda.device import Place, add_device_option, device_sampler
from benchmarks.cuda.program import run
from benchmarks.measure import record
from benchmarks.measure.cases import Row as ResultRow
from benchmarks.measure.cases import checked, records
from benchmarks.measure.program import Step, parser_for
from benchmarks.measure.timing import interleave

SECTIONS = ("models", "encoders")
BUNDLES = record.ROOT / "examples" / "bundles"
LENGTHS = (128, 512, 2048, 8192, 32768)
BATCHES = (1, 32)
MOST_TOKENS = 65536
# Values of each knob, dealt out to the rows of a batch in turns.
MIXED: dict[str, tuple[float, ...]] = {
    "num_hashes": (8, 16, 32, 64),
    "alpha": (0.1, 0.2, 0.4, 0.8),
    "keep": (0.25, 0.5, 0.75, 1.0),
}
# cuBLAS sums in another order than the CPU, and chooses it by the batch: relative to the largest logit, at least 1.
TOLERANCE = 2e-2
MODEL_SECONDS, CPU_PAIR_SECONDS = 5.0, 30e-9


def rows(model: Model, lengths: Sequence[int], knobs: Mapping[str, Sequence[float]]) -> list[Row]:
    """Sequences of random tokens, knobs dealt out in turns."""
    random = np.random.default_rng(0)
    kinds = {knob.name: (int if knob.dtype == "int32" else float) for knob in model.manifest.knobs}
    rows = []
    for number, length in enumerate(lengths):
        ids = random.integers(0, model.manifest.vocab_size, length, dtype=np.int64)
        values = {name: kinds[name](options[number % len(options)]) for name, options in knobs.items()}
        rows.append(Row(ids, np.zeros_like(ids), model.knobs.check(values), seed=0))
    return rows


def ragged(longest: int, batch: int) -> list[int]:
    """Lengths of a batch: the longest first, the others from a quarter of it up."""
    random = np.random.default_rng(1)
    return [longest, *random.integers(max(1, longest // 4), longest + 1, batch - 1).tolist()]


def logits(model: Model, batch: Sequence[Row]) -> Any:
    """float32 `[B, labels]`, of a token classifier `[T, labels]`."""
    return np.vstack([result.logits for result in model.run(batch)])


def difference(actual: Any, truth: Any) -> float:
    """Largest difference over the largest logit, at least 1."""
    return float(np.abs(actual - truth).max() / max(1.0, np.abs(truth).max()))


def wall_sampler(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """Elapsed time of whole calls, host work included."""
    started = time.perf_counter_ns()
    for _ in range(count):
        call()
    taken = time.perf_counter_ns() - started
    return taken, taken


def measured(fast: Model, slow: Model, length: int, batch: int, seconds: float) -> ResultRow:
    """Checks and times one bundle on one batch.

    Args:
        fast: the bundle on CUDA.
        slow: the same on the CPU.
        length: tokens of the longest row.
        batch: rows.
        seconds: see `timing.interleave`.

    Returns:
        A row of a result file: elapsed times, differences, speed-ups over exact attention on the same device, and of
        the device over the CPU.
    """
    lengths = ragged(length, batch)
    names = [knob.name for knob in fast.manifest.knobs]
    exact = rows(fast, lengths, {name: [fast.knobs.exact()[name]] for name in names})
    mixed = rows(fast, lengths, {name: MIXED[name] for name in names})
    errors = {
        "exact, CPU": checked(
            "the exact value on CUDA", difference(logits(fast, exact), logits(slow, exact)), TOLERANCE
        )
    }
    alone = np.concatenate([logits(fast, [row]) for row in exact[:4]])
    errors["exact, alone"] = checked("a batch", difference(logits(fast, exact)[:4], alone), TOLERANCE)
    if not np.isfinite(logits(fast, mixed)).all():
        raise SystemExit(f"benchmarks: {fast.manifest.name} gives logits that are not finite")
    runs = {"exact": lambda: fast.run(exact), "mixed": lambda: fast.run(mixed)}
    values = itertools.product(*(MIXED[name] for name in names))
    for chosen in values:
        knobs = dict(zip(names, chosen, strict=True))
        called = ", ".join(f"{name}={value:g}" for name, value in knobs.items())
        batch_rows = rows(fast, lengths, {name: [value] for name, value in knobs.items()})
        runs[called] = partial(fast.run, batch_rows)
    runs["mixed, CPU"] = lambda: slow.run(mixed)
    timings = interleave(runs, seconds=seconds, sampler=wall_sampler, clock="wall")
    return {
        "bundle": fast.manifest.name,
        "n": length,
        "batch": batch,
        "lengths": lengths,
        "contenders": records(timings),
        "errors": errors,
        "over_exact": {
            name: timing.times_faster_than(timings["exact"])
            for name, timing in timings.items()
            if name not in ("exact", "mixed, CPU")
        },
        "over_cpu": timings["mixed"].times_faster_than(timings["mixed, CPU"]),
    }


def steps(options: argparse.Namespace, place: Place, head: dict[str, Any]) -> list[Step]:
    """Every bundle, length and batch that was asked for and that the bundle takes."""

    @cache
    def models(folder: Path) -> tuple[Model, Model]:
        return load(folder, device=place.device), load(folder)

    @cache
    def encoders(shape: str) -> cuda_encoders.DeviceModels:
        return cuda_encoders.DeviceModels(place, cuda_encoders.SHAPES[shape])

    todo = []
    for shape in cuda_encoders.SHAPES if "encoders" in options.sections else ():
        for length in cuda_encoders.LENGTHS:

            def encoder(shape: str = shape, length: int = length) -> ResultRow:
                return cuda_encoders.run(encoders(shape), length, options.seconds, device_sampler(place))

            todo.append(Step("encoders", f"{shape}, n={length}", encoder, MODEL_SECONDS + options.seconds))
    for folder in options.bundles if "models" in options.sections else ():
        manifest = read_manifest(folder)
        for length in (n for n in options.lengths if n <= manifest.max_tokens):
            for batch in (b for b in BATCHES if b == 1 or b * length <= MOST_TOKENS):

                def work(folder: Path = folder, length: int = length, batch: int = batch) -> ResultRow:
                    return measured(*models(folder), length, batch, options.seconds)

                expected = MODEL_SECONDS + options.seconds + batch * length**2 * CPU_PAIR_SECONDS
                todo.append(Step("models", f"{manifest.name}, {batch} x {length}", work, expected))
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=1.0)
    add_device_option(parser)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--bundles", nargs="+", type=Path, default=sorted(path.parent for path in BUNDLES.glob("*/bundle.json"))
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    operators = ("kept_lengths", "mca", "pool", "select", "softmax", "yoso")
    return run("cuda_models", parser, arguments, steps, operators)


if __name__ == "__main__":
    sys.exit(main())
