"""The inputs that a command reads: its arguments, files of texts or of JSON lines, standard input."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attenuator.api import INPUT_FIELDS, TextInput
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import shown

STDIN = "-"


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


def _item(line: str, where: str) -> Item:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {error}") from None
    content = {name: record[name] for name in INPUT_FIELDS if name in record} if isinstance(record, dict) else {}
    if not content:
        actual = "has none of these fields" if isinstance(record, dict) else f"is {shown(record)}"
        raise InvalidRequest(
            f"{where} {actual}, must be an object with text, with text and text_pair, or with token_ids"
        )
    return Item(where, content, record.get("labels"), record.get("label"))


def lines_of(path: str, *, jsonl: bool) -> Iterator[Item]:
    """The inputs of a file, one a line; blank lines are skipped.

    Args:
        path: a file, or `-` for standard input.
        jsonl: each line is a JSON object rather than a text; so are those of a file named `*.jsonl`.

    Raises:
        InvalidRequest: the file cannot be read, or a line is not a JSON object with an input.
    """
    name = "standard input" if path == STDIN else path
    jsonl = jsonl or Path(path).suffix == ".jsonl"
    try:
        with nullcontext(sys.stdin) if path == STDIN else open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    where = f"{name} line {number}"
                    yield _item(line, where) if jsonl else Item(where, {"text": line.rstrip("\r\n")})
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8: {error.reason} at byte {error.start}") from None


def items(texts: Iterable[str], files: Iterable[str], *, jsonl: bool) -> Iterator[Item]:
    """All inputs of a call, the texts among its arguments first.

    Raises:
        InvalidRequest: as `lines_of`.
    """
    for number, text in enumerate(texts, start=1):
        yield Item(f"text {number}", {"text": text})
    for path in files:
        yield from lines_of(path, jsonl=jsonl)
