"""What the benchmark programs share on their command lines, and the bar that shows how far they are."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import record
from cases import Row
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ISAS = ("avx2", "avx512", "avx512_vnni")

Step = tuple[str, str, Callable[[], Row]]  # section of the result file, what the bar says, what to do


def parser_for(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=ISAS, help="restrict the operators, not the baselines, to it")
    parser.add_argument("--seconds", type=float, default=seconds, help="about how long the rounds of a case may last")
    parser.add_argument("--output", type=Path, help="result file; benchmarks/results/<program>-<isa>.json by default")
    return parser


def run(
    name: str,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    steps: Callable[[argparse.Namespace], Sequence[Step]],
    **facts: Any,
) -> int:
    """Does the steps and writes the result file.

    Args:
        name: of the benchmark.
        parser: from `parser_for`.
        arguments: of the command line; the program's own by default.
        steps: from the options to what is to be done.
        facts: further fields of the result file.

    Returns:
        The exit status.
    """
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    if options.isa:
        os.environ["ATTENUATOR_ISA"] = options.isa  # read when the library first runs
    head = record.origin(given)
    if options.isa and head["isa"] != options.isa:
        parser.error(f"--isa is {options.isa}, but this processor's best is {head['isa']}")
    output = options.output or record.RESULTS / f"{name}-{head['isa']}.json"
    record.write(output, {"benchmark": name, **head, **facts, **measured(steps(options))})
    print(output, file=sys.stderr)
    return 0


def measured(steps: Sequence[Step]) -> dict[str, list[Row]]:
    """Does the steps under a progress bar on stderr; rows by section."""
    sections: dict[str, list[Row]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(steps))
        for section, name, work in steps:
            progress.update(task, description=name)
            sections.setdefault(section, []).append(work())
            progress.advance(task)
    return sections
