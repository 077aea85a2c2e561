#!/usr/bin/env python3
"""Checks the CUDA kernels of a built operator library without a GPU: what ptxas said, what the machine code holds.

As `cuda_check.py --compile NVCC ...` it runs the compiler, and keeps what ptxas says beside the object file.
As `cuda_check.py --library FILE ...` it fails, naming kernel, architecture and figure, where

* a kernel lacks machine code for an architecture, or the library lacks PTX for newer ones;
* registers are spilled, or a kernel has more than a tiny stack frame;
* a launch asks for more shared memory or more registers than a block can have (launches are those that the test
  device has seen, `scripts/cuda_launches.py`);
* an atomic operation on shared memory is a loop of compare-and-swap.

Standard library only.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

KIB = 1024
# Most shared memory of a block by architecture: CUDA C++ Programming Guide, technical specifications per compute
# capability.
SHARED_LIMIT = {
    "sm_80": 163 * KIB,
    "sm_86": 99 * KIB,
    "sm_89": 99 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_120": 99 * KIB,
}
REGISTERS_OF_A_BLOCK = 65536
REGISTER_UNIT = 8  # of a thread, allocated at once
MOST_STACK = 64  # bytes a thread
PTXAS_SUFFIX = ".ptxas"
SHARED_CAS = ("ATOMS.CAS", "ATOMS.CAST")


@dataclass(slots=True)
class Kernel:
    """One kernel's machine code for one architecture.

    Attributes:
        name: readable, without the names that compilers make up.
        architecture: such as `sm_90`.
        registers: of a thread.
        stack: bytes of a thread.
        spill_stores: bytes of a thread.
        spill_loads: bytes of a thread.
        static_shared: bytes of a block.
        dynamic_shared: most bytes of a block that a launch has asked for; None where none was seen.
        threads: most threads of a block; None as above.
        shared_atomics: instructions on shared memory, native ones.
        shared_loops: compare-and-swap instructions on shared memory.
    """

    name: str
    architecture: str
    registers: int = 0
    stack: int = 0
    spill_stores: int | None = None
    spill_loads: int | None = None
    static_shared: int = 0
    dynamic_shared: int | None = None
    threads: int | None = None
    shared_atomics: int = 0
    shared_loops: int = 0


def compile_and_keep(command: Sequence[str]) -> int:
    """Runs nvcc; what ptxas reports goes beside the object file, anything else is shown."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if "-o" in command:
        Path(command[command.index("-o") + 1] + PTXAS_SUFFIX).write_text(done.stderr, encoding="utf-8")
    quiet = re.compile(r"ptxas info|\s+\d+ bytes stack frame|\s*$")
    shown = [line for line in done.stderr.splitlines() if done.returncode or not quiet.match(line)]
    print(*shown, sep="\n", end="\n" if shown else "", file=sys.stderr)
    return done.returncode


def demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Readable names: no parameter list, no unnamed namespaces, the C++ types of the data as the C ABI calls them."""
    ordered = sorted(set(symbols))
    done = subprocess.run(["c++filt"], input="\n".join(ordered), capture_output=True, text=True, check=True)
    return {symbol: readable(name) for symbol, name in zip(ordered, done.stdout.splitlines(), strict=True)}


def readable(name: str) -> str:
    """See `demangled`."""
    name = re.sub(r"^void ", "", name)
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", name)
    depth = 0
    for index, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            name = name[:index]
            break
    name = re.sub(r"(attenuator::cuda::Half|__half)\b", "float16", name)
    name = re.sub(r"(attenuator::cuda::Bfloat16|__nv_bfloat16)\b", "bfloat16", name)
    return name.removeprefix("attenuator::")


def read_spills(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Symbol, architecture, spill stores and spill loads of each kernel in ptxas's log."""
    entry = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
    spills = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
    current: tuple[str, str] | None = None
    for line in text.splitlines():
        if match := entry.search(line):
            current = (match[1], match[2])
        elif current and (match := spills.search(line)):
            yield (*current, int(match[2]), int(match[3]))
            current = None


def output_of(*command: str | Path) -> str:
    """What a program prints."""
    beside = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # cuobjdump calls nvdisasm
    environment = os.environ | {"PATH": beside}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=environment).stdout


def read_resources(text: str) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Symbol, architecture and figures from `cuobjdump --dump-resource-usage`."""
    architecture = symbol = ""
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            symbol = match[1]
        elif symbol and "REG:" in line:
            yield (
                symbol,
                architecture,
                {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", line)},
            )
            symbol = ""


def read_atomics(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Symbol, architecture, native and looping atomic instructions on shared memory, from `cuobjdump -sass`."""
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    architecture = symbol = ""
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            symbol = match[1]
        elif match := re.search(r"\b(ATOMS\.\S+)", line):
            counts[symbol, architecture][match[1].startswith(SHARED_CAS)] += 1
    for (name, place), (native, loops) in counts.items():
        yield name, place, native, loops


def collect(library: Path, objects: Path, tools: Path, launches: Sequence[dict[str, object]]) -> list[Kernel]:
    """Everything known of each kernel on each architecture of a library."""
    cuobjdump = tools / "cuobjdump"
    resources = list(read_resources(output_of(cuobjdump, "--dump-resource-usage", library)))
    logs = [log.read_text(encoding="utf-8") for log in sorted(objects.rglob("*" + PTXAS_SUFFIX))]
    spills = [row for log in logs for row in read_spills(log)]
    names = demangled([symbol for symbol, *_ in resources] + [symbol for symbol, *_ in spills])
    kernels = {}
    for symbol, architecture, figures in resources:
        kernels[symbol, architecture] = Kernel(
            names[symbol], architecture, figures["REG"], figures["STACK"], static_shared=figures["SHARED"]
        )
    for symbol, architecture, stores, loads in spills:
        kernel = kernels.get((symbol, architecture))
        if kernel:
            kernel.spill_stores, kernel.spill_loads = stores, loads
    for symbol, architecture, native, loops in read_atomics(output_of(cuobjdump, "-sass", library)):
        if (symbol, architecture) in kernels:
            kernel = kernels[symbol, architecture]
            kernel.shared_atomics, kernel.shared_loops = native, loops
    for kernel in kernels.values():
        limit = SHARED_LIMIT.get(kernel.architecture)
        matching = [row for row in launches if row["kernel"] == kernel.name and row["shared_limit"] == limit]
        if matching:
            kernel.dynamic_shared = max(int(str(row["shared_bytes"])) for row in matching)
            kernel.threads = max(int(str(row["threads"])) for row in matching)
    return sorted(kernels.values(), key=lambda kernel: (kernel.name, int(kernel.architecture[3:])))


def problems(kernels: Sequence[Kernel], architectures: Sequence[str], ptx: str) -> Iterator[str]:
    """What is wrong, a sentence each."""
    if not kernels:
        yield "the library holds no kernel"
    if f".{architectures[-1]}.ptx" not in ptx:
        yield f"the library holds no PTX for devices newer than {architectures[-1]}"
    by_name: dict[str, set[str]] = defaultdict(set)
    for kernel in kernels:
        by_name[kernel.name].add(kernel.architecture)
    for name, present in by_name.items():
        for missing in [architecture for architecture in architectures if architecture not in present]:
            yield f"{name} has no machine code for {missing}"
    for kernel in kernels:
        where = f"{kernel.name} on {kernel.architecture}"
        if kernel.spill_stores is None:
            yield f"{where}: ptxas reported no spills for it: remove the build folder and build again"
        elif kernel.spill_stores or kernel.spill_loads:
            yield f"{where} spills registers: {kernel.spill_stores} bytes stored, {kernel.spill_loads} loaded"
        if kernel.stack > MOST_STACK:
            yield f"{where} has a stack frame of {kernel.stack} bytes, more than {MOST_STACK}"
        shared = kernel.static_shared + (kernel.dynamic_shared or 0)
        limit = SHARED_LIMIT[kernel.architecture]
        if shared > limit:
            yield f"{where} asks for {shared} bytes of shared memory, a block has {limit}"
        registers = -(-kernel.registers // REGISTER_UNIT) * REGISTER_UNIT * (kernel.threads or 0)
        if registers > REGISTERS_OF_A_BLOCK:
            yield f"{where}: {kernel.threads} threads need {registers} registers, a block has {REGISTERS_OF_A_BLOCK}"
        if kernel.shared_loops:
            yield f"{where}: {kernel.shared_loops} atomic operations on shared memory are compare-and-swap loops"


def table(kernels: Sequence[Kernel]) -> str:
    """One line per kernel; figures that differ between architectures stand in their order, divided by slashes."""
    columns = ("registers", "stack", "spill_stores", "static_shared", "dynamic_shared", "threads", "shared_atomics")
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.name].append(kernel)
    rows = [["kernel", *(column.replace("_", " ") for column in columns)]]
    for name, group in groups.items():
        row = [name]
        for column in columns:
            values = ["-" if getattr(kernel, column) is None else str(getattr(kernel, column)) for kernel in group]
            row.append(values[0] if len(set(values)) == 1 else "/".join(values))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main(arguments: list[str]) -> int:
    """Runs the program; 1 where a check fails."""
    if arguments[:1] == ["--compile"]:
        return compile_and_keep(arguments[1:])
    parser = argparse.ArgumentParser(prog="scripts/cuda_check.py", description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, required=True, help="libattenuator_ops.so, built with CUDA")
    parser.add_argument("--objects", type=Path, required=True, help="its build folder")
    parser.add_argument("--tools", type=Path, required=True, help="folder with cuobjdump and nvdisasm")
    parser.add_argument("--launches", type=Path, help="what scripts/cuda_launches.py wrote")
    parser.add_argument("--report", type=Path, help="where all figures go, as JSON")
    options = parser.parse_args(arguments)
    launches = json.loads(options.launches.read_text(encoding="utf-8")) if options.launches else []
    kernels = collect(options.library, options.objects, options.tools, launches)
    architectures = list(SHARED_LIMIT)
    wrong = list(problems(kernels, architectures, output_of(options.tools / "cuobjdump", "-lptx", options.library)))
    if options.report:
        report = {"architectures": architectures, "kernels": [asdict(kernel) for kernel in kernels], "problems": wrong}
        options.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(kernels))
    unseen = sorted({kernel.name for kernel in kernels if kernel.threads is None})
    if unseen and options.launches:
        print(f"never launched on the test device: {', '.join(unseen)}")
    for sentence in wrong:
        print(f"cuda_check: {sentence}", file=sys.stderr)
    if not wrong:
        names = {kernel.name for kernel in kernels}
        print(f"cuda_check: {len(names)} kernels for {', '.join(architectures)}: no fault found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
