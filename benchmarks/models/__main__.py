"""Times whole models: the same encoder with YOSO, YOSO-C or MCA, with exact softmax, and with ONNX Runtime's attention.

    python -m benchmarks.models
    python -m benchmarks.models --isa avx2 --shapes lra --sections models

One untrained encoder a shape is traced once; the contenders differ in the attention nodes alone, run one sequence or
one ragged batch at a time, in one process, in turns, with the options of serving. "free attention" has two additions in
attention's place: no attention can beat it. Before timing, the graph's exact value must equal the PyTorch model, and
the exact softmax graphs must agree. Writes benchmarks/results/models-ISA.json. Needs torch (extra `export`).
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from benchmarks.contenders import attention
from benchmarks.contenders.graphs import INT8_OPERATORS, SHAPES
from benchmarks.contenders.model_batches import Batch
from benchmarks.contenders.model_sessions import ALPHA, YOSO, Graphs, Models, relative
from benchmarks.measure.cases import Row, Runs, checked, fastest, records
from benchmarks.measure.node_profile import node_times
from benchmarks.measure.program import Step, cpu_parser_for, run
from benchmarks.measure.timing import Timing, interleave

SECTIONS = ("models", "ragged", "int8")
LENGTHS = {"paper": (128, 256, 512, 1024, 2048, 4096), "lra": (1024, 2048, 4096), "bert": (128, 512)}
NUM_HASHES = (8, 16, 32)
ALPHAS = (0.2, 0.4, 1.0)
# What runs beside exact attention, by shape: MCA's value projection is too small a part of the others.
KNOBS = {"paper": YOSO, "lra": YOSO, "bert": ALPHA}
# The paper's efficiency runs hash with log2(n) bits; the shape of that table runs so too, beside 8.
LOG2_HASHES = {"paper": 32}
# ONNX's Attention keeps all scores.
ATTENTION23_LONGEST = 4096
TOLERANCE = 1e-4
# Rounded linear layers move logits; further than this, relative to the largest, something else is wrong.
INT8_TOLERANCE = 0.3
INT8_LENGTHS = {"paper": (128, 512, 2048), "lra": (1024,), "bert": (128, 512)}
# Ragged batches, by shape: a whole BERT-base layer over the long one takes seconds a run.
RAGGED = {"paper": tuple(attention.RAGGED), "lra": tuple(attention.RAGGED), "bert": tuple(attention.RAGGED)[:1]}
# Where a profile of the nodes is taken, on one thread.
PROFILED = {"paper": 1024, "lra": 4096, "bert": 512}
PROFILED_HASHES = 16


def ratios(runs: Runs, timings: dict[str, Timing], fused: Sequence[str], exact: str = "softmax") -> Row:
    """Speed-ups over exact attention in the same packed graph, and over the fastest fused attention."""
    best = fastest(timings, tuple(fused))
    ours = [name for name in runs if name not in (exact, *fused)]
    return {
        "contenders": records(timings),
        "best_fused": best,
        "over_softmax": {name: timings[name].times_faster_than(timings[exact]) for name in ours},
        "over_softmax_wall": {name: timings[name].times_faster_than(timings[exact], wall=True) for name in ours},
        "over_fused": {name: timings[name].times_faster_than(timings[best]) for name in [*ours, exact]},
    }


def own_runs(models: Models, batch: Batch, num_hashes: Sequence[int], hash_bits: int | None) -> tuple[Runs, Row]:
    """This project's graphs over a batch, and how far their exact values are from the truth."""
    errors: Row = {}
    runs: Runs = {}
    if KNOBS[models.shape.name] == ALPHA:
        truth = models.logits("softmax", batch)
        errors["mca alpha=0"] = checked("mca", relative(models.logits("mca", batch, alpha=0.0), truth), TOLERANCE)
        return {f"mca alpha={a:g}": models.runner("mca", batch, alpha=a) for a in ALPHAS}, errors
    for graph in ("yoso", "yoso-c"):
        errors[f"{graph} m=0"] = checked(graph, models.parity(graph), TOLERANCE)
    runs = {f"yoso m={m}": models.runner("yoso", batch, num_hashes=m) for m in num_hashes}
    if attention.CONV_HASHES in num_hashes:
        name = f"yoso-c m={attention.CONV_HASHES}"
        runs[name] = models.runner("yoso-c", batch, num_hashes=attention.CONV_HASHES)
    most = LOG2_HASHES.get(models.shape.name)
    if hash_bits is not None and most in num_hashes:
        graph = models.with_hash_bits(hash_bits)
        errors[f"{graph} m=0"] = checked(graph, models.parity(graph, hash_bits), TOLERANCE)
        runs[f"yoso m={most}, log2(n) bits"] = models.runner(graph, batch, num_hashes=most)
    return runs, errors


def one_sequence(models: Models, length: int, num_hashes: Sequence[int], seconds: float) -> Row:
    """Times one length; see the module."""
    batch = Batch((length,))
    fused = ["mha", *(["attention23"] if length <= ATTENTION23_LONGEST else [])]
    truth = models.logits("softmax", batch)
    runs, errors = own_runs(models, batch, num_hashes, round(math.log2(length)))
    errors |= {name: checked(name, relative(models.logits(name, batch), truth), TOLERANCE) for name in fused}
    runs |= {name: models.runner(name, batch) for name in ("softmax", *fused, "free attention")}
    timings = interleave(runs, threads=models.threads, seconds=seconds)
    row = {"shape": models.shape.name, "n": length, "threads": models.threads, "errors": errors}
    row |= ratios(runs, timings, fused)
    if length == PROFILED[models.shape.name] and models.threads == 1:
        row["node_times"] = profile(models, batch)
    return row


def profile(models: Models, batch: Batch) -> Row:
    """Time by kind of node, with this project's operator and with exact attention."""
    if KNOBS[models.shape.name] == ALPHA:
        own, name, knobs = "mca", f"mca alpha={ALPHAS[0]:g}", {"alpha": ALPHAS[0]}
    else:
        own, name, knobs = "yoso", f"yoso m={PROFILED_HASHES}", {"num_hashes": float(PROFILED_HASHES)}
    return {
        name: node_times(models.graphs[own], models.inputs(own, batch, **knobs)),
        "softmax": node_times(models.graphs["softmax"], models.inputs("softmax", batch)),
    }


def ragged(models: Models, name: str, lengths: Sequence[int], num_hashes: Sequence[int], seconds: float) -> Row:
    """Times one ragged batch: packed, and padded with a mask, which a server without packed batches runs."""
    batch = Batch(tuple(lengths))
    runs, errors = own_runs(models, batch, num_hashes, None)
    truth = models.logits("softmax", batch)
    errors["padded"] = checked("padded", relative(models.logits("padded", batch), truth), TOLERANCE)
    runs |= {contender: models.runner(contender, batch) for contender in ("softmax", "padded", "free attention")}
    timings = interleave(runs, threads=models.threads, seconds=seconds)
    facts = {"shape": models.shape.name, "batch": name, "lengths": list(lengths), "threads": models.threads}
    return facts | {"errors": errors} | ratios(runs, timings, ["padded"])


def rounded(models: Models, length: int, seconds: float) -> Row:
    """Times linear layers in int8 beside the same graph in fp32."""
    batch = Batch((length,))
    own = "mca" if KNOBS[models.shape.name] == ALPHA else "yoso"
    settings: dict[str, tuple[str, dict[str, float]]] = {
        "softmax": ("softmax", {}),
        **({"mca alpha=0.4": ("mca", {"alpha": 0.4})} if own == "mca" else {}),
        **({f"yoso m={PROFILED_HASHES}": ("yoso", {"num_hashes": PROFILED_HASHES})} if own == "yoso" else {}),
    }
    runs: Runs = {}
    errors: Row = {}
    for name, (graph, knobs) in settings.items():
        truth = models.logits(graph, batch, **{key: 0 for key in knobs})
        logits = models.logits(models.int8(graph), batch, **{key: 0 for key in knobs})
        errors[f"int8 {name}"] = checked(f"int8 {name}", relative(logits, truth), INT8_TOLERANCE)
        runs[name] = models.runner(graph, batch, **knobs)
        runs[f"int8 {name}"] = models.runner(models.int8(graph), batch, **knobs)
    timings = interleave(runs, threads=models.threads, seconds=seconds)
    return {
        "shape": models.shape.name,
        "n": length,
        "threads": models.threads,
        "errors": errors,
        "contenders": records(timings),
        "over_fp32": {name: timings[f"int8 {name}"].times_faster_than(timings[name]) for name in settings},
        "bytes": {name: models.graphs[name].ByteSize() for name in (own, models.int8(own))},
    }


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Every shape, length and batch that was asked for."""
    graphs = cache(lambda name: Graphs(SHAPES[name], KNOBS[name]))
    models = cache(lambda name, threads: Models(graphs(name), threads))

    def step(section: str, what: str, name: str, threads: int, pairs: int, work: Any) -> Step:
        shape = SHAPES[name]
        share = shape.layers * shape.heads / attention.HEADS
        expected = 2 + options.seconds + share * attention.expected(pairs, 3, threads)
        return Step(section, f"{name}, {what}, {threads} thread(s)", lambda: work(models(name, threads)), expected)

    for name in options.shapes:
        for threads in options.threads:
            for n in (options.lengths or LENGTHS[name]) if "models" in options.sections else ():
                work: Any = partial(one_sequence, length=n, num_hashes=options.num_hashes, seconds=options.seconds)
                yield step("models", f"n={n}", name, threads, n * n, work)
            for n in INT8_LENGTHS[name] if "int8" in options.sections else ():
                work = partial(rounded, length=n, seconds=options.seconds)
                yield step("int8", f"int8, n={n}", name, threads, n * n, work)
            for batch in RAGGED[name] if "ragged" in options.sections else ():
                lengths = attention.ragged_lengths()[batch]
                work = partial(
                    ragged, name=batch, lengths=lengths, num_hashes=options.num_hashes, seconds=options.seconds
                )
                yield step("ragged", batch, name, threads, len(lengths) * max(lengths) ** 2, work)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = cpu_parser_for(__doc__, seconds=2.0)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of the sequence; each shape's own by default")
    parser.add_argument("--num-hashes", nargs="+", type=int, default=NUM_HASHES)
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    facts = {name: vars(shape) for name, shape in SHAPES.items()}
    operators = ("mca", "pool", "softmax", "yoso", *INT8_OPERATORS)
    return run("models", parser, arguments, lambda options: list(steps(options)), operators, shapes=facts)


if __name__ == "__main__":
    sys.exit(main())
