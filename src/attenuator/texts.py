"""The inputs that a command reads: its arguments, files of texts or of JSON lines, standard input."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar, cast

from attenuator.api import INPUT_FIELDS, TextInput
from attenuator.errors import InvalidRequest
from attenuator.json_body import refuse_constant, refuse_repeated
from attenuator.ops.knobs import shown

T = TypeVar("T")

STDIN = "-"
OBJECT = "must be an object with text, with text and text_pair, or with token_ids"
UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as `lines` has them
LOOKED_AT = 1024  # bytes of a file's begin


@dataclass(frozen=True, slots=True)
class Item:
    """One input.

    Attributes:
        where: its place, for error sentences: `text 1`, or `notes.txt line 12`.
        content: as the HTTP API takes it: `{"text": ..}`, with a `text_pair`, or `{"token_ids": ..}`.
        labels: the field of that name of a JSON line, unchecked; None where it has none.
        label: likewise.
    """

    where: str
    content: dict[str, Any]
    labels: Any = None
    label: Any = None

    @property
    def excerpt(self) -> str:
        """The input on one line."""
        if "token_ids" in self.content:
            return " ".join(str(token) for token in self.content["token_ids"])
        texts = (str(self.content[name]) for name in TextInput.model_fields if name in self.content)
        return " | ".join(" ".join(text.split()) for text in texts)


def name_of(path: str) -> str:
    """What error sentences call a file, or `-`."""
    return "standard input" if path == STDIN else path


def at_least_one(values: Iterable[T], path: str, kind: str) -> Iterator[T]:
    """What a file, or `-`, holds.

    Raises:
        InvalidRequest: that is nothing; `kind` says of what.
    """
    empty = True
    for value in values:
        empty = False
        yield value
    if empty:
        raise InvalidRequest(f"{name_of(path)} is empty, must have at least one {kind}")


def lines(path: str) -> Iterator[str]:
    """The lines of a file with their ends, without a byte order mark; what is not UTF-8 becomes `UNDECODED`.

    Args:
        path: a file, or `-` for standard input.

    Raises:
        InvalidRequest: the file cannot be read, or begins as no text does, such as that of a spreadsheet.
    """
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as opened:
            stream = cast(BufferedReader, opened)
            if b"\0" in stream.peek(LOOKED_AT)[:LOOKED_AT]:
                kinds = "CSV, TSV, JSON lines or one text a line"
                raise InvalidRequest(f"{name_of(path)} is no text in UTF-8, must be {kinds}: export it as one of them")
            for number, line in enumerate(stream):
                yield line.decode("utf-8" if number else "utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise InvalidRequest(f"{name_of(path)} cannot be read: {error.strerror}") from None


def places(read: Iterable[str], name: str) -> Iterator[tuple[str, str]]:
    """Place and content of each line that is not blank, without its end."""
    for number, line in enumerate(read, start=1):
        if line.strip():
            yield f"{name} line {number}", line.rstrip("\r\n")


def label_text(value: Any) -> str | None:
    """A label as a file has it, text or whole number, as text; None where it is neither."""
    return str(value).strip() or None if isinstance(value, str | int) and not isinstance(value, bool) else None


def label_places(names: Iterable[str], labels: Sequence[str]) -> dict[str, int]:
    """Where the labels of a file stand among a model's: the one rule of every command that reads labels.

    Args:
        names: all that the file has, as text.
        labels: the model's, in the order of its logits.

    Returns:
        The place of each label that the file may have: the model's names, or `0`, `1`, .. where the file has places
        alone and not all of them are names too.
    """
    by_name = {label: place for place, label in enumerate(labels)}
    by_place = {str(place): place for place in range(len(labels))}
    given = set(names)
    return by_place if given <= by_place.keys() and not given <= by_name.keys() else by_name


def checked(line: str, where: str) -> str:
    """The line.

    Raises:
        InvalidRequest: it is not UTF-8.
    """
    if UNDECODED.search(line):
        raise InvalidRequest(f"{where} is not UTF-8")
    return line


def record_of(line: str, where: str, allowed: str = OBJECT) -> dict[str, Any]:
    """The object that a JSON line holds; `allowed` says what it must be, for errors.

    Raises:
        InvalidRequest: it is not UTF-8, not JSON, no object, has a field twice, or half of a surrogate pair.
    """
    checked(line, where)
    try:
        record = RECORDS.decode(line)
        if "\\u" in line:  # JSON can spell what no file in UTF-8 can hold
            json.dumps(record, ensure_ascii=False).encode()
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where} has half of a surrogate pair, must be Unicode text") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidRequest(f"{where} is {shown(record)}, {allowed}")
    return record


def _finite(number: str) -> float:
    """A number, which must not overflow: it could not be written as JSON again."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:20]} is too large for a number")
    return value


RECORDS = json.JSONDecoder(parse_constant=refuse_constant, parse_float=_finite, object_pairs_hook=refuse_repeated)


def input_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that the HTTP API takes as an input; empty where it has none."""
    return {name: record[name] for name in INPUT_FIELDS if name in record}


def item_of(record: Mapping[str, Any], where: str) -> Item:
    """The input of a JSON line.

    Raises:
        InvalidRequest: it has none.
    """
    if not (content := input_in(record)):
        raise InvalidRequest(f"{where} has none of these fields, {OBJECT}")
    return Item(where, content, record.get("labels"), record.get("label"))


def records_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and object of each line of a file of JSON lines that is not blank.

    Args:
        path: a file, or `-` for standard input.

    Raises:
        InvalidRequest: the file cannot be read, or a line is not UTF-8 or no JSON object.
    """
    for where, line in places(lines(path), name_of(path)):
        yield where, record_of(line, where)


def lines_of(path: str, *, jsonl: bool) -> Iterator[Item]:
    """The inputs of a file, one a line; blank lines are skipped.

    Args:
        path: a file, or `-` for standard input.
        jsonl: each line is a JSON object rather than a text; so are those of a file named `*.jsonl`.

    Raises:
        InvalidRequest: the file cannot be read, or a line is not UTF-8 or no JSON object with an input.
    """
    if jsonl or Path(path).suffix == ".jsonl":
        yield from (item_of(record, where) for where, record in records_of(path))
    else:
        yield from (Item(where, {"text": checked(line, where)}) for where, line in places(lines(path), name_of(path)))


def refuse_pipe(path: Path) -> None:
    """Refuses a file that can be read only once, where its content also says which run goes on.

    Raises:
        InvalidRequest: it is a pipe or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidRequest(f"{path} is a pipe or a device, must be a file: it is read more than once")


def parts(source: Iterable[T], size: Callable[[T], int], most: int, most_size: int) -> Iterator[list[T]]:
    """Cuts what comes into parts of bounded length and size; one that is larger than that is alone."""
    part: list[T] = []
    total = 0
    for each in source:
        if part and (len(part) == most or total + size(each) > most_size):
            yield part
            part, total = [], 0
        part.append(each)
        total += size(each)
    if part:
        yield part


def items(texts: Iterable[str], files: Iterable[str], *, jsonl: bool) -> Iterator[Item]:
    """All inputs of a call, the texts among its arguments first.

    Raises:
        InvalidRequest: as `lines_of`.
    """
    for number, text in enumerate(texts, start=1):
        yield Item(f"text {number}", {"text": text})
    for path in files:
        yield from lines_of(path, jsonl=jsonl)
