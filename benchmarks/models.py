"""Times whole models: the same encoder with YOSO at several m, with exact softmax, and with ONNX Runtime's attention.

    python benchmarks/models.py
    python benchmarks/models.py --isa avx2 --shapes lra

One untrained encoder a shape is traced once; the contenders differ in the attention nodes alone, run one sequence at a
time, in one process, in turns, with the options of serving. "free attention" has two additions in attention's place: no
attention can beat it. Before timing, the graph's exact value must equal the PyTorch model, and the exact softmax graphs
must agree. Writes benchmarks/results/models-ISA.json. Needs torch (extra `export`).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from cases import Row, Runs, checked, records
from graphs import SWAPS, Shape, swapped, traced
from node_profile import node_times
from nodes import bound
from program import Step, parser_for, run
from timing import interleave

from attenuator.export.encoder import Encoder
from attenuator.runtime import create

SHAPES = {
    "paper": Shape("paper", "Zeng et al., ICML 2021, appendix, efficiency tables", 6, 256, 4, 1024),
    "lra": Shape("lra", "Zeng et al., ICML 2021, appendix, hyperparameters of Long Range Arena", 2, 64, 2, 128),
}
LENGTHS = {"paper": (128, 256, 512, 1024, 2048, 4096), "lra": (1024, 2048, 4096)}
NUM_HASHES = (8, 16, 32)
# ONNX's Attention keeps all scores.
ATTENTION23_LONGEST = 4096
# Length at which the YOSO graph's exact value is compared with PyTorch.
PARITY_LENGTH = 200
TOLERANCE = 1e-4
# Where a profile of the nodes is taken, on one thread.
PROFILED = {"paper": 1024, "lra": 4096}
PROFILED_HASHES = 16


def feeds(length: int, num_hashes: int | None) -> dict[str, Any]:
    """Graph inputs of one sequence."""
    ids = np.random.default_rng(0).integers(0, 4096, length)
    given: dict[str, Any] = {
        "input_ids": ids,
        "position_ids": np.arange(length),
        "cu_seqlens": np.array([0, length], np.int32),
    }
    if num_hashes is not None:
        given |= {"num_hashes": np.array([num_hashes], np.int32), "seed": np.zeros(1, np.int64)}
    return given


class Models:
    """One shape's sessions, created once for all lengths.

    Args:
        shape: of the encoder.
        threads: intra-op threads.
    """

    def __init__(self, shape: Shape, threads: int) -> None:
        self.shape = shape
        self.threads = threads
        self.encoder: Encoder = shape.model()
        self.sessions = {}
        self.graphs = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            self.graphs["yoso"] = traced(self.encoder, path)
            self.graphs |= {name: swapped(self.graphs["yoso"], swap) for name, swap in SWAPS.items()}
            for name, graph in self.graphs.items():
                onnx.save(graph, path)
                self.sessions[name] = create(path, threads=threads)

    def logits(self, name: str, length: int, num_hashes: int | None = None) -> Any:
        """One run."""
        return self.sessions[name].run(["logits"], self.inputs(name, length, num_hashes))[0]

    def inputs(self, name: str, length: int, num_hashes: int | None) -> dict[str, Any]:
        """What this graph takes."""
        wanted = {value.name for value in self.sessions[name].get_inputs()}
        return {key: value for key, value in feeds(length, num_hashes).items() if key in wanted}

    def parity(self) -> float:
        """Difference of the YOSO graph at the exact value to PyTorch's expectation."""
        given = {name: torch.from_numpy(value) for name, value in feeds(PARITY_LENGTH, None).items()}
        with torch.inference_mode():
            eager = self.encoder(given["input_ids"], given["position_ids"], given["cu_seqlens"]).numpy()
        return relative(self.logits("yoso", PARITY_LENGTH, 0), eager)

    def runner(self, name: str, length: int, num_hashes: int | None) -> Any:
        """What runs a graph over bound memory."""
        shape = self.logits(name, length, num_hashes).shape
        given = self.inputs(name, length, num_hashes)
        return bound(self.sessions[name], given, {"logits": (shape, np.float32)})[0]

    def row(self, length: int, num_hashes: Sequence[int], seconds: float) -> Row:
        """Times one length; see the module."""
        exact = ["softmax", "mha", *(["attention23"] if length <= ATTENTION23_LONGEST else [])]
        truth = self.logits("softmax", length)
        errors = {"yoso m=0": checked("yoso", self.parity(), TOLERANCE)}
        errors |= {name: checked(name, relative(self.logits(name, length), truth), TOLERANCE) for name in exact[1:]}
        runs: Runs = {f"yoso m={m}": self.runner("yoso", length, m) for m in num_hashes}
        runs |= {name: self.runner(name, length, None) for name in [*exact, "free attention"]}
        timings = interleave(runs, threads=self.threads, seconds=seconds)
        best = min(exact[1:], key=lambda name: float(np.median(timings[name].cpu_us)))
        ours = [name for name in runs if name.startswith("yoso") or name == "free attention"]
        row = {
            "shape": self.shape.name,
            "n": length,
            "threads": self.threads,
            "contenders": records(timings),
            "errors": errors,
            "best_fused": best,
            "over_softmax": {name: timings[name].times_faster_than(timings["softmax"]) for name in ours},
            "over_fused": {name: timings[name].times_faster_than(timings[best]) for name in [*ours, "softmax"]},
        }
        if length == PROFILED[self.shape.name] and self.threads == 1:
            row["node_times"] = {
                f"yoso m={PROFILED_HASHES}": node_times(
                    self.graphs["yoso"], self.inputs("yoso", length, PROFILED_HASHES)
                ),
                "softmax": node_times(self.graphs["softmax"], self.inputs("softmax", length, None)),
            }
        return row


def relative(found: Any, truth: Any) -> float:
    """Largest difference relative to the largest value."""
    return float(np.abs(found - truth).max() / np.abs(truth).max())


def steps(options: argparse.Namespace) -> list[Step]:
    """Every shape and length that was asked for."""
    todo: list[Step] = []
    for name in options.shapes:
        for threads in options.threads:
            models = Models(SHAPES[name], threads)
            for length in options.lengths or LENGTHS[name]:
                work = partial(models.row, length, options.num_hashes, options.seconds)
                todo.append(("models", f"{name}, n={length}, {threads} thread(s)", work))
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=2.0)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of the sequence; each shape's own by default")
    parser.add_argument("--num-hashes", nargs="+", type=int, default=NUM_HASHES)
    parser.add_argument("--threads", nargs="+", type=int, default=(1,))
    return run("models", parser, arguments, steps, shapes={name: vars(shape) for name, shape in SHAPES.items()})


if __name__ == "__main__":
    sys.exit(main())
