"""Finds what each CUDA kernel's launches ask for, threads and shared memory of a block, without a GPU.

Runs every operator that has CUDA kernels on the test device (`cuda_on_host`) with the shared memory of each kind of
device in turn: small and large head dimensions, short and longer sequences, every choice of attributes, every element
type. Kernels are named as in `scripts/cuda_check.py`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "scripts")]
import numpy as np  # noqa: E402
from cases import CASES, HEADS, SIZES, Case, defaults, make_inputs  # noqa: E402
from cuda_check import SHARED_LIMIT, demangled  # noqa: E402
from devices import CUDA_OPERATORS  # noqa: E402
from harness import Array  # noqa: E402
from harness_cuda import DATA_TYPES, run_on_device  # noqa: E402

HEAD_DIMS = (8, 64, 128, 256)
SHORT = (2, 40)
LONG = (300, 1100)  # beyond what operators treat as short, with one narrow head
LONGEST = 4100  # beyond what one block takes, of operators whose knob counts samples: linear in the length
STAGED = ((400, 64), (800, 32))  # tokens and a head's channels that take YOSO's tables through shared memory
NARROW = {name: 1 if name == "num_heads" else 16 for name in SIZES}
FEW = 3


def sized(case: Case, head_dim: int) -> dict[str, int]:
    """Sizes of a case's axes with heads of this many channels."""
    width = HEADS * head_dim
    return SIZES | {"num_heads * head_dim": width, "num_heads * value_dim": width, "C": width}


def runs(long: bool) -> Iterator[tuple[Case, str, dict[str, Array]]]:
    """Case, element type and inputs of each run."""
    for data in DATA_TYPES:
        for case in CASES:
            if case.operator in CUDA_OPERATORS:
                yield case, data, make_inputs(case, SHORT)
        for case in map(defaults, CUDA_OPERATORS):
            for head_dim in HEAD_DIMS:
                yield case, data, make_inputs(case, SHORT, sizes=sized(case, head_dim))
                whole = replace(case, optional=True)
                if whole.inputs != case.inputs:
                    yield whole, data, make_inputs(whole, SHORT, sizes=sized(case, head_dim))
            for extreme in extremes(case):
                yield extreme, data, make_inputs(extreme, SHORT)
            narrow = Case(case.operator, case.attributes | {name: 1 for name in case.attributes if name == "num_heads"})
            sampled = any(knob.dtype == "int32" for knob in case.operator.knobs)
            lengths = (*LONG, LONGEST) if sampled else LONG
            shapes = [((length,), NARROW) for length in (lengths if long else LONG[:1])]
            if sampled and not long:
                shapes += [((length, length), NARROW | {"num_heads * value_dim": width}) for length, width in STAGED]
            for rows, sizes in shapes:
                inputs = make_inputs(narrow, rows, sizes=sizes)
                for knob in case.operator.knobs:
                    if knob.dtype == "int32":
                        inputs[knob.name][:] = FEW
                yield narrow, data, inputs


def extremes(case: Case) -> Iterator[Case]:
    """The case with each required attribute but the number of heads at its limits."""
    for item in case.operator.attributes:
        if item.kind == "int" and item.default is None and item.name != "num_heads":
            for value in (item.low, item.high):
                yield replace(case, attributes=case.attributes | {item.name: value})


def symbols(library: Path) -> dict[int, str]:
    """The library's functions by address."""
    listed = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    mangled = {int(place, 16): name for place, name in re.findall(r"^(\w+) [tTwW] (\S+)$", listed, re.MULTILINE)}
    names = demangled(mangled.values())
    return {place: names[name] for place, name in mangled.items()}


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(prog="scripts/cuda_launches.py", description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True, help="libattenuator_ops.so of the test device")
    parser.add_argument("--output", type=Path, required=True, help="a JSON file")
    options = parser.parse_args()
    os.environ["ATTENUATOR_CUDA_LIBRARY"] = str(options.library.resolve())
    launches: set[tuple[str, int, int, int]] = set()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "launches"
        log.touch()
        os.environ["ATTENUATOR_ON_HOST_LAUNCHES"] = str(log)
        limits = sorted(set(SHARED_LIMIT.values()))
        for limit in limits:
            os.environ["ATTENUATOR_ON_HOST_SHARED"] = str(limit)
            for case, data, inputs in runs(long=limit == limits[0]):
                with np.errstate(all="ignore"):
                    run_on_device(case.operator.name, inputs, case.attributes, data)
        names = symbols(options.library)
        for line in log.read_text(encoding="utf-8").splitlines():
            place, threads, shared_bytes, limit = line.split()
            launches.add((names[int(place, 16)], int(threads), int(shared_bytes), int(limit)))
    keys = ("kernel", "threads", "shared_bytes", "shared_limit")
    rows = [dict(zip(keys, row, strict=True)) for row in sorted(launches)]
    options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
