"""Answers as rows of a CSV, TSV or JSONL file: the input's own columns, then what the model says."""

import csv
import json
from collections.abc import Mapping
from typing import IO, Any

from attenuator.api import Classification
from attenuator.rows import DELIMITERS, FileRow, Format

RENAMED = "input_{}"  # an input's own column that has the name of one of the columns that are added


class RowOutput:
    """Writes rows, in the order in which they come; the header of a table with the first of them.

    Attributes:
        columns: what is added to the input's own columns; the last of them is the error.
    """

    def __init__(
        self, stream: IO[str], kind: Format, *, scores: bool = False, logits: bool = False, sureness: bool = False
    ) -> None:
        """Takes the stream.

        Args:
            stream: where to.
            kind: csv, tsv or jsonl.
            scores: there is a column of the best labels with their scores.
            logits: there is a column of the logits.
            sureness: there are columns of the standard error and of the probability of agreement.
        """
        further = {"scores": scores, "logits": logits, "standard_error": sureness, "agreement_probability": sureness}
        shown = [name for name, present in further.items() if present]
        self.columns = ("label", "score", "labels", "entities", *shown, "knobs", "seed", "tokens", "error")
        self._stream, self._kind = stream, kind
        self._writer: Any = None
        self._names: list[str] = []
        self._held: list[dict[str, Any]] = []

    def write(self, row: FileRow, answer: Classification | None, error: str) -> None:
        """Writes a row.

        Args:
            row: the input's.
            answer: with one prediction; None where there is an error.
            error: one sentence; empty where there is an answer.
        """
        values: dict[str, Any] = dict.fromkeys(self.columns) | {"error": error or None}
        if answer is not None:
            prediction = answer.predictions[0].model_dump(mode="json", exclude_none=True)
            values |= {name: value for name, value in prediction.items() if name in values}
            values |= {"knobs": prediction.get("knobs", answer.knobs), "seed": answer.seed, "tokens": answer.tokens[0]}
        own = {self._free_name(name, row.columns): value for name, value in row.columns.items()}
        if self._kind == "jsonl":
            kept = {name: value for name, value in values.items() if value is not None}
            self._stream.write(json.dumps(own | kept, ensure_ascii=False) + "\n")
        else:
            self._table_row(own, values)
        self._stream.flush()

    def _free_name(self, name: str, others: Mapping[str, Any]) -> str:
        """A column's name in the output, where columns of the answer have theirs."""
        while name in self.columns:
            name = RENAMED.format(name)
            while name in others:
                name = RENAMED.format(name)
        return name

    def _table_row(self, own: Mapping[str, Any], values: dict[str, Any]) -> None:
        if self._writer is None and not own:  # a line that is not JSON says nothing of the columns
            self._held.append(values)
            return
        if self._writer is None:
            self._begin(list(own))
        cells = [_cell(value) for value in [*(own.get(name) for name in self._names), *values.values()]]
        # The csv module does not quote a carriage return, which its reader takes for the end of the row.
        (self._quoting if any("\r" in cell for cell in cells) else self._writer).writerow(cells)

    def _begin(self, names: list[str]) -> None:
        self._names = names
        form: Any = {"delimiter": DELIMITERS[self._kind], "lineterminator": "\n"}
        self._writer = csv.writer(self._stream, **form)
        self._quoting = csv.writer(self._stream, **form, quoting=csv.QUOTE_ALL)
        self._writer.writerow([*names, *self.columns])
        held, self._held = self._held, []
        for values in held:
            self._table_row({}, values)

    def close(self) -> None:
        """Writes what waits for the columns' names, and the header where there was no row."""
        if self._kind in DELIMITERS and self._writer is None:
            self._begin([])
        self._stream.flush()


def _cell(value: Any) -> str:
    """A value as a cell: nothing for None, JSON for what is no text."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
