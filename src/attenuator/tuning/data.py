"""Texts to train on: read from a file, divided, tokenized as the service would."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attenuator.bundle import MAX_LABEL_CHARACTERS, file_sha256
from attenuator.errors import CONTROL, InputTooLong, InvalidRequest
from attenuator.export.tokenizer import BundleTokenizer
from attenuator.ops.knobs import shown
from attenuator.rows import Columns, Format, file_rows, format_of
from attenuator.runtime import Encoded, Input
from attenuator.runtime.tokens import TextEncoder
from attenuator.texts import refuse_pipe

__all__ = ["LABEL", "LABELS", "Data", "Text", "encode", "read", "refuse_same", "split", "text_encoder"]

# The columns or fields with a text's label, or with all labels of one that may have several.
LABEL, LABELS = "label", "labels"
EXCERPT = 60
# Of numbers that are learnt: beyond it squared errors of float32 are of no use.
MAX_SCORE = 1e6


@dataclass(frozen=True, slots=True)
class Text:
    """A text, or a pair of texts.

    Attributes:
        where: its place in the file, for error sentences.
        content: as the HTTP API takes it.
        labels: of a text that has one label that one alone; None where the file has no labels.
    """

    where: str
    content: dict[str, Any]
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """The texts of a file.

    Attributes:
        name: of the file, without its folder.
        sha256: of its content.
        texts: in the order of the file.
        multi_label: whether a text may have several labels.
    """

    name: str
    sha256: str
    texts: list[Text]
    multi_label: bool

    @property
    def label_names(self) -> list[str]:
        """The labels that occur, in alphabetical order; numbers in theirs."""
        names = {label for text in self.texts for label in text.labels or ()}
        return sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))


def read(
    path: Path,
    columns: Columns | None = None,
    *,
    label_column: str | None = None,
    labelled: bool,
    scores: bool = False,
    kind: Format | None = None,
) -> Data:
    """Reads a file of texts.

    Args:
        path: CSV, TSV, JSON lines or one text a line, by its ending.
        columns: which columns or fields hold the texts.
        label_column: the column or field with the label; `label`, or `labels` with a list of them, by default.
        labelled: whether every text must have labels; otherwise they are not looked at.
        scores: whether labels are numbers to learn, one a text.
        kind: the file's format, where its name does not tell.

    Raises:
        InvalidRequest: the file cannot be read or is empty, or names the first row that cannot be trained on.
    """
    refuse_pipe(path)
    texts, lists = [], 0
    for row in file_rows(str(path), format_of(str(path), kind), columns or Columns()):
        if row.content is None:
            raise InvalidRequest(row.error)
        labels = None
        if labelled:
            labels, is_list = labels_of(row.columns, row.where, label_column, scores)
            lists += is_list
        texts.append(Text(row.where, row.content, labels))
    if not texts:
        raise InvalidRequest(f"{path} has no texts, must have one on each line")
    if 0 < lists < len(texts):
        raise InvalidRequest(f"{path} has a list of labels on some lines and one label on others, must have one kind")
    return Data(path.name, file_sha256(path), texts, lists > 0)


def labels_of(
    columns: dict[str, Any], where: str, column: str | None, scores: bool = False
) -> tuple[tuple[str, ...], bool]:
    """The labels of a row, and whether they are a list.

    Raises:
        InvalidRequest: it has none, or some that are neither text nor whole number; of scores, another than a number.
    """
    names = [column] if column else [LABEL, LABELS]
    present = [name for name in names if columns.get(name) not in (None, "")]
    if len(present) != 1:
        has = "no label" if not present else f"both {' and '.join(present)}"
        raise InvalidRequest(
            f"{where} has {has}, must have one in the column or field {' or '.join(names)}"
            + ("" if column else "; --label-column names another")
        )
    value = columns[present[0]]
    if scores:
        return (score_of(value, where),), False
    values = value if isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int) or not str(one).strip():
            raise InvalidRequest(
                f"{where} has the label {shown(one)}, must be a text or a whole number; --regression learns numbers"
            )
        if len(str(one)) > MAX_LABEL_CHARACTERS or CONTROL.search(str(one).strip()):
            raise InvalidRequest(
                f"{where} has the label {ascii(one)[:EXCERPT]}, must have at most {MAX_LABEL_CHARACTERS} characters "
                "and none of control"
            )
    return tuple(dict.fromkeys(str(one).strip() for one in values)), isinstance(value, list)


def score_of(value: Any, where: str) -> str:
    """A number to learn, as text.

    Raises:
        InvalidRequest: it is none, or not a finite one of float32.
    """
    try:
        number = math.nan if isinstance(value, bool | list) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MAX_SCORE:
        raise InvalidRequest(
            f"{where} has the label {shown(value)}, must be a number from -{MAX_SCORE:g} to {MAX_SCORE:g}"
        )
    return repr(number)


def refuse_same(data: Data, held_out: Data) -> None:
    """Refuses texts held out that are those to learn from.

    Raises:
        InvalidRequest: they are the same file.
    """
    if data.sha256 == held_out.sha256:
        raise InvalidRequest(
            f"--held-out '{held_out.name}' has the same content as --data, must be other texts: those that were learnt "
            "say nothing of what was gained; without it a part of the data is held out"
        )


def split(texts: Sequence[Text], share: float, seed: int) -> tuple[list[Text], list[Text]]:
    """Divides texts into those to train on and those held out; equal texts stay together.

    Args:
        texts: in any order, which changes nothing.
        share: of the texts that are held out, about.
        seed: of the choice.
    """
    kept: list[Text] = []
    held_out: list[Text] = []
    for text in texts:
        digest = hashlib.sha256(f"{seed} {json.dumps(text.content, sort_keys=True)}".encode()).digest()
        (held_out if int.from_bytes(digest[:8], "big") < share * 2**64 else kept).append(text)
    return kept, held_out


def text_encoder(tokenizer: BundleTokenizer, max_tokens: int, vocab_size: int, token_types: int) -> TextEncoder:
    """What tokenizes exactly as the service will.

    Args:
        tokenizer: the checkpoint's.
        max_tokens: longest text that the model takes.
        vocab_size: rows of its embedding table.
        token_types: token types that it tells apart, at least 1.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.plain.save(str(path))
        return TextEncoder(
            path,
            max_tokens=max_tokens,
            vocab_size=vocab_size,
            truncation_side=tokenizer.truncation_side,
            split_special_tokens=tokenizer.split_special_tokens,
            token_types=token_types,
        )


def encode(texts: Sequence[Text], encoder: TextEncoder, *, truncate: bool) -> list[Encoded]:
    """Tokenizes texts.

    Args:
        texts: to tokenize.
        encoder: see `text_encoder`.
        truncate: cuts texts that are longer than the model takes, instead of refusing them.

    Raises:
        InvalidRequest: names the first text that cannot be tokenized, or is too long.
    """
    encoded = []
    for text in texts:
        try:
            encoded.append(Input.of(text.content, text.where).encode(encoder, truncate=truncate))
        except InputTooLong as error:
            raise InputTooLong(str(error).replace("set truncate", "give --truncate to cut it")) from None
    return encoded
