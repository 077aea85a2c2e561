"""What the programs for CUDA share."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.cuda.device import Place, card, cuda_place
from benchmarks.measure import record
from benchmarks.measure.program import Step, measure

PRECISIONS = ("bf16", "fp16")

Steps = Callable[[argparse.Namespace, Place, dict[str, Any]], Sequence[Step]]


def slug(name: str) -> str:
    """A card's name as part of a file's: `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def run(
    name: str,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    steps: Steps,
    operators: Sequence[str],
) -> int:
    """Does the steps on a CUDA device and writes the result file.

    Args:
        name: of the benchmark.
        parser: from `program.parser_for`, with `cuda_device.add_device_option`.
        arguments: of the command line; the program's own by default.
        steps: from the options, the place and the head of the result file to what is to be done.
        operators: keys of those that are measured.

    Returns:
        The exit status.

    Raises:
        SystemExit: the device cannot be used; one sentence says why.
    """
    command_line = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(command_line)
    place = cuda_place(options.device_id)
    head = {"benchmark": name, **record.origin(command_line, operators, cuda=True), "card": card(place)}
    output = options.output or record.RAW / f"{name}-{slug(head['card']['name'])}.json"
    return measure(head, output, lambda: steps(options, place, head))
