"""Result files that are written row by row, so that a program measures what its file lacks.

Rows may be of several runs and trees: each says which.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import record
from benchmarks.measure.cases import Row

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
        if path.is_file() and not again:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            same = {**facts, "machine": head["machine"]}
            if any(earlier.get(name) != json.loads(json.dumps(value)) for name, value in same.items()):
                raise ValueError(f"{path} was measured otherwise: give --again, or another --output")
            self.done = earlier["rows"]

    def find(self, **facts: Any) -> list[Row]:
        """Rows with these facts."""
        return [row for row in self.done if all(row.get(name) == value for name, value in facts.items())]

    def keep(self, row: Row) -> None:
        """Adds a row, and writes the file."""
        self.done.append(row)
        record.write(self.path, self._head | {"rows": self.done})


def tree_of(operators: list[str]) -> Row:
    """What a row says of the tree that it was measured in.

    Args:
        operators: keys of those that it measures.
    """
    return {name: value for name, value in record.origin([], operators).items() if name in OF_A_ROW}
