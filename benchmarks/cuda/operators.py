"""Times the operators on a CUDA device beside FlashAttention, and checks their results first.

    python -m benchmarks.cuda.operators
    python -m benchmarks.cuda.operators --precisions bf16 --lengths 4096 16384 65536 --batches one

Exact attention is the fastest of PyTorch's backends (FlashAttention, cuDNN, memory-efficient) and ONNX Runtime's own
CUDA attention. Our operators run through ONNX Runtime's CUDA execution provider: data in the device's memory, knobs in
the host's. Device time counts from the first kernel to the last, wall time adds what the host takes for a single run.
Writes benchmarks/results/cuda_operators-CARD.json, from which plots and operators/operators.md are made.
"""

import argparse
import sys
from functools import partial
from typing import Any

from benchmarks.cuda import attention as cuda_attention
from benchmarks.cuda import projection as cuda_projection
from benchmarks.cuda.device import Place, add_device_option, device_sampler, limits
from benchmarks.cuda.program import PRECISIONS, run
from benchmarks.measure.program import Step, parser_for

SECTIONS = ("attention", "projection")
# Beyond the budget: the reference in NumPy, and inputs of 65,536 tokens.
CHECK_SECONDS, PROJECTION_SECONDS = 6.0, 10.0


def steps(options: argparse.Namespace, place: Place, head: dict[str, Any]) -> list[Step]:
    """Everything that was asked for; the device's limits come first, as rates are compared with them."""
    sampler = device_sampler(place)
    best: dict[str, Any] = {}

    def measure_limits() -> dict[str, Any]:
        best.update(limits(place, options.seconds))
        return best

    todo = [Step("limits", "the device's limits", measure_limits, 2 + options.seconds)]
    if "attention" in options.sections:
        for setting in cuda_attention.settings(options.precisions, options.lengths, options.batches):
            work = partial(cuda_attention.run, place, setting, options.num_hashes, options.seconds, sampler, best)
            todo.append(Step("attention", str(setting), work, CHECK_SECONDS + options.seconds))
    if "projection" in options.sections:
        for precision in options.precisions:
            for batch in cuda_projection.BATCHES:
                work = partial(cuda_projection.run, place, precision, batch, options.seconds, sampler)
                name = f"value projection, {precision}, {batch} x {cuda_projection.LENGTH}"
                todo.append(Step("projection", name, work, PROJECTION_SECONDS + options.seconds))
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=1.0)
    add_device_option(parser)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--lengths", nargs="+", type=int, default=cuda_attention.LENGTHS)
    parser.add_argument("--num-hashes", nargs="+", type=int, default=cuda_attention.NUM_HASHES)
    parser.add_argument("--batches", nargs="+", choices=cuda_attention.BATCHES, default=cuda_attention.BATCHES,
                        help="one sequence, or as many as make 65,536 tokens")  # fmt: skip
    return run("cuda_operators", parser, arguments, steps, ("mca", "softmax", "yoso"))


if __name__ == "__main__":
    sys.exit(main())
