"""Result files that are written row by row, so that a program measures what its file lacks.

Rows may be of several runs and trees: each says which.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.kernels import fingerprint

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
        if path.is_file() and not again:
            self.done = self._earlier(head["machine"], facts)

    def _earlier(self, machine: Row, facts: Mapping[str, Any]) -> list[Row]:
        try:
            earlier = json.loads(self.path.read_text(encoding="utf-8"))
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


def is_outdated(row: Row) -> bool:
    """Whether the kernels that a row measured have changed since."""
    return row["kernels"] is None or any(_now(key) != was for key, was in row["kernels"].items())


_now = cache(fingerprint)  # sources do not change while a program runs


def tree_of(operators: list[str]) -> Row:
    """What a row says of the tree that it was measured in.

    Args:
        operators: keys of those that it measures.
    """
    return {name: value for name, value in record.origin([], operators).items() if name in OF_A_ROW}
