"""Times the operators beside what else computes attention, and checks their results first.

    python -m benchmarks.operators                                           # this machine's best instruction set
    python -m benchmarks.operators --isa avx2 --sections attention ragged

All contenders of a case run in one process, in turns, through ONNX Runtime with the options of serving and with inputs
and outputs bound. One thread counts the calling thread's CPU time, several count the process's (threads do not spin).
Writes benchmarks/results/operators-ISA.json, from which plots and operators.md are made.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.contenders import attention, frontier, projection, torch_baseline
from benchmarks.measure.cases import Case, Row
from benchmarks.measure.program import Step, cpu_parser_for, run
from benchmarks.operators import peak_memory

SECTIONS = ("attention", "ragged", "projection", "frontier", "memory")
MEMORY_LENGTHS = (1024, 4096, 8192)
MEMORY_THREADS = 2
MEMORY_SECONDS, FRONTIER_SECONDS, PROJECTION_SECONDS = 2.5, 8.0, 4.0  # beyond the budget, roughly


def memory_row(contender: str, length: int, num_hashes: int) -> Row:
    """Peak temporary memory of one contender."""
    memory = peak_memory.measure(contender, length, num_hashes, MEMORY_THREADS)
    name = f"yoso m={num_hashes}" if contender == "yoso" else contender
    return {"n": length, "threads": MEMORY_THREADS, "contender": name, **memory}


def memory_steps(options: argparse.Namespace, torch: bool) -> Iterator[Step]:
    """Each contender in a process of its own."""
    rivals = ("softmax", "mha", *(torch_baseline.DTYPES if torch else ()))
    for length in (n for n in MEMORY_LENGTHS if n <= max(options.lengths)):
        chosen = [*(("yoso", m) for m in options.num_hashes), *((name, 0) for name in rivals)]
        if length <= attention.ATTENTION23_LONGEST:
            chosen.append(("attention23", 0))
        for name, m in chosen:
            yield Step("memory", f"memory of {name}, n={length}", partial(memory_row, name, length, m), MEMORY_SECONDS)


def steps(options: argparse.Namespace) -> list[Step]:
    """Everything that was asked for."""
    torch = options.torch and torch_baseline.available()
    cases: list[Case] = []
    if "attention" in options.sections:
        cases += attention.one_sequence_cases(options.lengths, options.num_hashes, options.threads, torch)
    if "ragged" in options.sections:
        cases += attention.ragged_cases(options.num_hashes, options.threads)
    todo: list[Step] = []
    for case in cases:
        what = case.facts.get("batch") or f"n={case.facts['n']}"
        work = partial(case.run, options.seconds)
        todo.append(Step(case.section, f"{what}, {case.threads} thread(s)", work, options.seconds + case.expected))
    if "projection" in options.sections:
        for n, window in projection.CASES:
            for sharpness in projection.SHARPNESS:
                work = partial(projection.run, n, window, sharpness, projection.BUDGETS * options.seconds)
                seconds = projection.BUDGETS * options.seconds + PROJECTION_SECONDS
                todo.append(Step("projection", f"value projection, n={n}, window={window}", work, seconds))
    if "frontier" in options.sections:
        for n in frontier.LENGTHS:
            work = partial(frontier.run, n, frontier.NUM_HASHES, options.seconds)
            todo.append(Step("frontier", f"error and time, n={n}", work, options.seconds + FRONTIER_SECONDS))
    if "memory" in options.sections:
        todo += memory_steps(options, torch)
    return todo


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = cpu_parser_for(__doc__, seconds=1.5)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--lengths", nargs="+", type=int, default=attention.LENGTHS, help="tokens of one sequence")
    parser.add_argument("--num-hashes", nargs="+", type=int, default=attention.NUM_HASHES)
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave PyTorch's attention out")
    return run("operators", parser, arguments, steps, ("mca", "softmax", "yoso"))


if __name__ == "__main__":
    sys.exit(main())
