"""What the benchmark programs share: their command lines, the bar that tells how long they will take, the result file.

Rows are written as they come, to FILE.partial; the result file itself appears, or is replaced, when all is there. The
same command, at the same commit and on the same machine, goes on behind the rows that FILE.partial has.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchmarks.measure import record
from benchmarks.measure.cases import Inaccurate, Row
from benchmarks.report.results_files import ISAS

INTERRUPTED = 130  # what shells give for SIGINT
FAILED = "failed"  # section of the steps that raised an error, or whose contenders were not right


class Step(NamedTuple):
    """Part of a program's work.

    Attributes:
        section: of the result file.
        name: what the bar says.
        work: makes the row.
        expected: seconds, roughly.
    """

    section: str
    name: str
    work: Callable[[], Row]
    expected: float


class Remaining(ProgressColumn):
    """Time that the whole program still takes: expected seconds, corrected by how wrong they were so far."""

    def render(self, task: Task) -> Text:
        """`about 0:03:20 left`."""
        remaining_s = task.remaining or 0.0
        if task.completed:
            remaining_s *= (task.elapsed or 0.0) / task.completed
        return Text(f"about {timedelta(seconds=round(remaining_s))} left", style="progress.remaining")


def parser_for(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=seconds, help="about how long the rounds of a case may last")
    parser.add_argument("--output", type=Path, help="result file; in benchmarks/results by default")
    return parser


def cpu_parser_for(description: str | None, seconds: float) -> argparse.ArgumentParser:
    """The same for programs that run on the CPU."""
    parser = parser_for(description, seconds)
    parser.add_argument("--isa", choices=ISAS, help="restrict the operators, not the baselines, to it")
    return parser


def run(
    name: str,
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    steps: Callable[[argparse.Namespace], Sequence[Step]],
    operators: Sequence[str],
    **facts: Any,
) -> int:
    """Does the steps on the CPU and writes the result file.

    Args:
        name: of the benchmark.
        parser: from `cpu_parser_for`.
        arguments: of the command line; the program's own by default.
        steps: from the options to what is to be done.
        operators: keys of those that are measured.
        facts: further fields of the result file.

    Returns:
        The exit status.
    """
    command_line = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(command_line)
    if options.isa:
        os.environ["ATTENUATOR_ISA"] = options.isa  # read when the library first runs
    head = record.origin(command_line, operators) | record.cpu()
    if options.isa and head["isa"] != options.isa:
        parser.error(f"--isa is {options.isa}, but this processor's best is {head['isa']}")
    output = options.output or record.RAW / f"{name}-{head['isa']}.json"
    return measure({"benchmark": name, **head, **facts}, output, lambda: steps(options))


def earlier(partial: Path, head: Row) -> dict[str, list[Row]]:
    """Rows by section of a run that was stopped; none where another command, tree or machine wrote them."""
    try:
        found: Row = json.loads(partial.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = record.rounded(head | {"load_average": found.get("load_average")})
    if any(found.get(name) != value for name, value in json.loads(json.dumps(same)).items()):
        return {}
    return {name: rows for name, rows in found.items() if name not in head and name != "seconds"}


def measure(head: Row, output: Path, steps: Callable[[], Sequence[Step]]) -> int:
    """Does the steps under a progress bar on stderr.

    Args:
        head: of the result file.
        output: the result file.
        steps: gives them.

    Returns:
        The exit status: 0, 1 where a step raised an error or a contender was not right, a row of `FAILED` then, or 130
        where the user stopped it.
    """
    started = time.perf_counter()
    partial = output.with_name(output.name + ".partial")
    sections = earlier(partial, head)
    # Steps that an earlier run has done, and that were not passed yet.
    waiting = Counter({name: len(rows) for name, rows in sections.items() if name != FAILED})
    waiting.update(row["section"] for row in sections.get(FAILED, []))

    def content() -> Row:
        return head | {"seconds": time.perf_counter() - started} | sections

    columns = (TextColumn("{task.description:32}"), BarColumn(), TimeElapsedColumn(), Remaining())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("prepare", total=None)
            todo = steps()
            progress.update(task, total=sum(step.expected for step in todo))
            for number, (section, name, work, expected) in enumerate(todo, start=1):
                progress.update(task, description=f"{number}/{len(todo)} {name}")
                if waiting.get(section):
                    waiting[section] -= 1
                else:
                    try:
                        sections.setdefault(section, []).append(work())
                    except (Inaccurate, Exception) as error:  # out of memory, say: others may fit
                        reason = str(error) if isinstance(error, Inaccurate) else f"{type(error).__name__}: {error}"
                        row = {"section": section, "step": name, "error": reason}
                        sections.setdefault(FAILED, []).append(row)
                        progress.console.print(f"{name}: failed: {reason}", markup=False)
                    record.write(partial, content())
                progress.advance(task, expected)
    except KeyboardInterrupt:
        done = f"; what was done lies in {partial}, and the same command goes on from it" if sections else ""
        print(f"benchmarks: stopped{done}", file=sys.stderr)
        return INTERRUPTED
    record.write(output, content())
    partial.unlink(missing_ok=True)
    print(output, file=sys.stderr)
    return 1 if sections.get(FAILED) else 0
