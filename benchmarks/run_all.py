"""Runs every benchmark, then draws plots and writes tables.

    python -m benchmarks.run_all
    python -m benchmarks.run_all --share 0.2      # a fifth of the rounds' time: rougher figures, sooner
    python -m benchmarks.run_all --device cuda    # the programs for CUDA instead

A program that fails does not keep the others from running. Operators run on the processor's best instruction set;
`python -m benchmarks.operators --isa avx2 --output FILE.json` restricts them to a lesser one.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

# By device: program, budget of a case in seconds, minutes on two quiet cores.
PROGRAMS = {
    "cpu": (("operators", 1.5, 4), ("models", 1.2, 3)),
    "cuda": (("cuda.operators", 1.0, 8), ("cuda.models", 1.0, 6)),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual time for rounds")
    parser.add_argument("--device", choices=PROGRAMS, default="cpu")
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[1]
    todo = PROGRAMS[options.device]
    remaining_minutes = sum(minutes for _, _, minutes in todo)
    failed = []
    started = time.perf_counter()
    for number, (program, seconds, minutes) in enumerate(todo, start=1):
        print(f"[{number}/{len(todo)}] {program}; about {remaining_minutes} minutes remain", file=sys.stderr)
        try:
            command = [sys.executable, "-m", f"benchmarks.{program}", "--seconds", f"{seconds * options.share:g}"]
            status = subprocess.run(command, cwd=root, check=False).returncode
        except KeyboardInterrupt:
            return 130
        remaining_minutes -= minutes
        if status:
            failed.append(program)
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
