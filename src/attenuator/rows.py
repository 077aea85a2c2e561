"""Rows of CSV, JSONL and text files: the columns as they stand there, and the input that one of them is.

A row that cannot be read is a row with an error, so that one wrong line in a million stops nothing; only a file that
cannot be read at all, or has no such column, is refused.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attenuator.api import INPUT_FIELDS, TextInput
from attenuator.errors import InvalidRequest
from attenuator.texts import UNDECODED, input_in, lines, name_of, places, record_of

Format = Literal["text", "csv", "tsv", "jsonl"]
DELIMITERS: dict[str, str] = {"csv": ",", "tsv": "\t"}
TEXT, PAIR = TextInput.model_fields
LONGEST_CELL = 2**31 - 1  # characters; the csv module's own limit is below one contract
COLUMNS_SHOWN = 10
COLUMN_SHOWN = 40  # characters of a name


@dataclass(frozen=True, slots=True)
class FileRow:
    """A row.

    Attributes:
        where: its place, such as `data.csv line 7`, by the line that it begins in.
        columns: value by name, as the file has them.
        content: the input, as the HTTP API takes it; None where the row has an error.
        error: why it cannot be read, with its place; empty where it can.
    """

    where: str
    columns: dict[str, Any]
    content: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold the input; None for those that the HTTP API's fields are named after."""

    text: str | None = None
    pair: str | None = None

    def of_header(self, header: list[str], name: str) -> dict[str, str]:
        """Column by field of the input.

        Raises:
            InvalidRequest: the header lacks one.
        """
        chosen = {TEXT: self.text or TEXT}
        if self.pair or (self.text is None and PAIR in header):
            chosen[PAIR] = self.pair or PAIR
        for column in chosen.values():
            if column not in header:
                raise InvalidRequest(
                    f"{name} has no column '{column}', its columns are {_listed(header)}: give --column NAME; the "
                    "first line must name the columns"
                )
        return chosen

    def of_record(self, record: dict[str, Any], where: str) -> FileRow:
        """The row of a JSON line."""
        if self.text is None and self.pair is None:
            content = input_in(record)
            missing = "" if content else " or ".join(INPUT_FIELDS)
        else:
            chosen = {TEXT: self.text or TEXT} | ({PAIR: self.pair} if self.pair else {})
            content = {name: record[column] for name, column in chosen.items() if column in record}
            missing = next((column for column in chosen.values() if column not in record), "")
        if missing:
            error = f"{where} has no field {missing}, its fields are {_listed(record)}"
            return FileRow(where, record, error=error)
        return FileRow(where, record, content)


def _listed(names: Iterable[str]) -> str:
    listed = [name if len(name) <= COLUMN_SHOWN else f"{name[:COLUMN_SHOWN]}..." for name in names]
    rest = len(listed) - COLUMNS_SHOWN
    return (", ".join(listed[:COLUMNS_SHOWN]) or "none") + (f" and {rest} more" if rest > 0 else "")


def format_of(path: str, chosen: Format | None) -> Format:
    """The format of a file, by its name where none is chosen; lines of text by default."""
    by_suffix: dict[str, Format] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
    return chosen or by_suffix.get(Path(path).suffix.lower(), "text")


def file_rows(path: str, kind: Format, columns: Columns) -> Iterator[FileRow]:
    """The rows of a file.

    Args:
        path: a file in UTF-8, or `-` for standard input.
        kind: its format; of CSV and TSV files the first line names the columns.
        columns: which columns hold the input.

    Raises:
        InvalidRequest: the file cannot be read, is of another kind, or has no such column.
    """
    read = _table_rows if kind in DELIMITERS else _line_rows
    for row in read(lines(path), name_of(path), kind, columns):
        yield with_encoding_error(row)


def with_encoding_error(row: FileRow) -> FileRow:
    """The row, with an error where it is not UTF-8."""
    if not any(isinstance(value, str) and UNDECODED.search(value) for value in row.columns.values()):
        return row
    columns = {
        name: value.encode(errors="surrogateescape").decode(errors="replace") if isinstance(value, str) else value
        for name, value in row.columns.items()
    }
    return FileRow(row.where, columns, error=row.error or f"{row.where} is not UTF-8")


def _line_rows(read: Iterable[str], name: str, kind: Format, columns: Columns) -> Iterator[FileRow]:
    """Rows of a file with one a line; blank lines are skipped."""
    for where, line in places(read, name):
        if kind == "text":
            yield FileRow(where, {TEXT: line}, {TEXT: line})
            continue
        try:
            record = record_of(line, where)
        except InvalidRequest as error:
            yield FileRow(where, {}, error=str(error))
        else:
            yield columns.of_record(record, where)


def _table_rows(read: Iterable[str], name: str, kind: Format, columns: Columns) -> Iterator[FileRow]:
    """Rows of a table, whose cells may have line breaks in quotes; blank lines are skipped."""
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(read, delimiter=DELIMITERS[kind], strict=True)
    header: list[str] | None = None
    chosen: Mapping[str, str] = {}
    while True:
        where = f"{name} line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            if header is None:
                raise InvalidRequest(f"{where} is not {kind.upper()}: {error}") from None
            yield FileRow(where, dict.fromkeys(header, ""), error=f"{where} is not {kind.upper()}: {error}")
            continue
        if not cells:
            continue
        if header is None:
            twice = next((cell for place, cell in enumerate(cells) if cell in cells[:place]), None)
            if twice is not None:
                raise InvalidRequest(f"{name} has the column '{twice}' twice, must have each once")
            header, chosen = cells, columns.of_header(cells, name)
        elif len(cells) != len(header):
            row = dict(zip(header, cells, strict=False))
            yield FileRow(where, row, error=f"{where} has {len(cells)} cells, the header has {len(header)}")
        else:
            row = dict(zip(header, cells, strict=True))
            yield FileRow(where, row, {field: row[column] for field, column in chosen.items()})
    if header is None:
        raise InvalidRequest(f"{name} is empty: the first line must name the columns")
