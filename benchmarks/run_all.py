"""Runs every benchmark, on the CPU with each instruction set this processor has, then draws plots and writes tables.

    python -m benchmarks.run_all
    python -m benchmarks.run_all --share 0.2      # a fifth of the rounds' time: rougher figures, sooner
    python -m benchmarks.run_all --device cuda    # the programs for CUDA instead

The best instruction set is measured in full; the others, to which only this project's operators are restricted, with
one thread and without what does not depend on them. A program that fails does not keep the others from running.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import record
from benchmarks.report.results_files import ISA_NAMES, ISAS

# Program, budget of a case in seconds, further arguments, minutes on two quiet cores.
BEST = (
    ("operators", 1.5, (), 4),
    ("models", 1.2, (), 3),
)
RESTRICTED = (
    ("operators", 0.8, ("--sections", "attention", "ragged", "projection", "frontier", "--threads", "1",
                           "--no-torch"), 2),
    ("models", 0.8, ("--sections", "models", "int8", "--threads", "1"), 1),
)  # fmt: skip


CUDA = (("cuda.operators", 1.0, (), 8), ("cuda.models", 1.0, (), 6))


def cuda_plan(share: float) -> list[tuple[str, list[str], int]]:
    """As `plan`, on a CUDA device."""
    return [
        (program, [f"benchmarks.{program}", "--seconds", f"{seconds * share:g}", *more], minutes)
        for program, seconds, more, minutes in CUDA
    ]


def plan(best: str, share: float) -> list[tuple[str, list[str], int]]:
    """What to run.

    Args:
        best: this processor's instruction set.
        share: of the usual budgets.

    Returns:
        For each program: what it is, its command, and its minutes.
    """
    todo = []
    for isa in ISAS[ISAS.index(best) :]:
        for program, seconds, further, minutes in BEST if isa == best else RESTRICTED:
            command = [f"benchmarks.{program}", "--isa", isa, "--seconds", f"{seconds * share:g}", *further]
            todo.append((f"{program} on {ISA_NAMES[isa]}", command, minutes))
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual time for rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[1]
    todo = cuda_plan(options.share) if options.device == "cuda" else plan(record.isa(), options.share)
    remaining_minutes = sum(minutes for _, _, minutes in todo)
    failed = []
    started = time.perf_counter()
    for number, (what, command, minutes) in enumerate(todo, start=1):
        print(f"[{number}/{len(todo)}] {what}; about {remaining_minutes} minutes remain", file=sys.stderr)
        try:
            status = subprocess.run([sys.executable, "-m", *command], cwd=root, check=False).returncode
        except KeyboardInterrupt:
            return 130
        remaining_minutes -= minutes
        if status:
            failed.append(what)
    print(f"measured for {(time.perf_counter() - started) / 60:.1f} minutes", file=sys.stderr)
    last = [["-m", "benchmarks.report.plots"], ["scripts/gen.py"]]
    if options.device == "cpu":
        last.insert(0, ["-m", "benchmarks.models.demo_request"])
    for command in last:
        if subprocess.run([sys.executable, *command], cwd=root, check=False).returncode:
            failed.append(command[-1])
    if failed:
        print(f"benchmarks: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
