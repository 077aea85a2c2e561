"""Result files that are written row by row, so that a program measures what its file lacks, and the end of such a one.

Rows may be of several runs and trees: each says which.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.program import INTERRUPTED
from benchmarks.report.results_files import read
from benchmarks.report.tables import table

OF_A_ROW = ("commit", "modified", "kernels")


class Rows:
    """The rows of a result file.

    Args:
        path: of the file.
        head: of the file, written anew by each run.
        facts: what rows of the same file have in common.
        again: forgets what the file has.

    Attributes:
        done: all rows, in the order in which they were measured.

    Raises:
        ValueError: the file's rows were measured otherwise, or on another machine.
    """

    def __init__(self, path: Path, head: Row, facts: Mapping[str, Any], *, again: bool) -> None:
        self.path = path
        self._head = {**head, **facts}
        self.done: list[Row] = []
        if path.is_dir():
            raise ValueError(f"--output is '{path}', must be a file, and is a folder")
        if record.earlier(path).is_file() and not again:
            self.done = self._earlier(head["machine"], facts)

    def _earlier(self, machine: Row, facts: Mapping[str, Any]) -> list[Row]:
        try:
            earlier = read(record.earlier(self.path))
            rows: list[Row] = earlier["rows"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path} is no result file with rows: give --again, or another --output") from None
        for name, value in {"machine": machine, **facts}.items():
            if earlier.get(name) != json.loads(json.dumps(value)):
                raise ValueError(f"{self.path} was measured with another {name}: give --again, or another --output")
        return rows

    def find(self, **facts: Any) -> list[Row]:
        """Rows with these facts."""
        return [row for row in self.done if all(row.get(name) == value for name, value in facts.items())]

    def keep(self, row: Row, *, instead_of: Mapping[str, Any] | None = None) -> None:
        """Adds a row, and writes the file.

        Args:
            row: what was measured.
            instead_of: facts of rows that it replaces.
        """
        replaced = self.find(**instead_of) if instead_of else []
        self.done = [each for each in self.done if each not in replaced] + [row]
        record.write(self.path, self._head | {"rows": self.done})


def run(
    output: Path,
    arguments: Sequence[str] | None,
    facts: Mapping[str, Any],
    measure: Callable[[Rows], bool | None],
    *,
    again: bool,
) -> int:
    """Measures what a result file lacks, prints its rows, and says on stderr where it lies and whether it is complete.

    Args:
        output: the result file.
        arguments: of the command line; the program's own by default.
        facts: what its rows have in common, the program's name as `benchmark` among them.
        measure: adds the rows that are missing; False where its time ended before that.
        again: forgets what the file has.

    Returns:
        The exit status: 0, 2 where the file's rows were measured otherwise, or 130 where the user stopped it.
    """
    head = record.origin(sys.argv[1:] if arguments is None else arguments, []) | record.cpu()
    try:
        rows = Rows(output, head, facts, again=again)
    except ValueError as error:
        print(f"{facts['benchmark']}: {error}", file=sys.stderr)
        return 2
    status, ending = 0, ""
    try:
        if measure(rows) is False:
            ending = ": the same command goes on"
    except KeyboardInterrupt:
        status, ending = INTERRUPTED, ": the same command goes on"
    if rows.done:
        print(shown(rows.done))
    print(f"{output}{ending}", file=sys.stderr)
    return status


def shown(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown: all that they say, but of which tree they are."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in OF_A_ROW]
    return table(names, [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(each)}" for name, each in value.items())
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def tree_of(operators: list[str]) -> Row:
    """What a row says of the tree that it was measured in.

    Args:
        operators: keys of those that it measures.
    """
    return {name: value for name, value in record.origin([], operators).items() if name in OF_A_ROW}
