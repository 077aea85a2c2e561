"""The texts of a comparison, their labels and their ranges of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest, file_sha256
from attenuator.calibration.frontier import bucket_ends, texts_needed
from attenuator.commands.calibrate.texts import Texts, truth_of
from attenuator.errors import InputTooLong, InvalidRequest
from attenuator.export.source import Source
from attenuator.rows import Columns, file_rows, format_of
from attenuator.runtime import Input
from attenuator.texts import Item, refuse_pipe
from attenuator.tuning.data import LABEL, LABELS, text_encoder

AMPLE = 2  # a range gets this many times the texts that show the goal if no answer changes
SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Texts of similar lengths.

    Attributes:
        low: tokens of the shortest that belongs to it.
        high: tokens of the longest.
        places: int64 `[texts]`, of the texts in it.
        median: length of the text in the middle, which is timed.
    """

    low: int
    high: int
    places: npt.NDArray[np.int64]
    median: int

    @property
    def name(self) -> str:
        """Such as `17 to 64 tokens`."""
        return f"{self.low} to {self.high} tokens"


def read_items(path: Path, columns: Columns, label_column: str | None, most: int) -> list[Item]:
    """The texts of a file.

    Args:
        path: CSV, TSV, JSON lines or one text a line, by its ending.
        columns: which columns or fields hold the texts.
        label_column: which one holds the label; None for `label` or `labels`.
        most: of more texts, that many evenly spread.

    Raises:
        InvalidRequest: the file cannot be read, has no texts, or a row has none.
    """
    refuse_pipe(path)
    items = []
    for row in file_rows(str(path), format_of(str(path), None), columns):
        if row.content is None:
            raise InvalidRequest(row.error)
        one, several = row.columns.get(label_column or LABEL), None if label_column else row.columns.get(LABELS)
        if isinstance(one, list):
            one, several = None, one
        items.append(Item(row.where, row.content, several, one))
    if not items:
        raise InvalidRequest(f"{path} has no texts, must have one on each line")
    return [items[len(items) * place // most] for place in range(most)] if len(items) > most else items


def encode(path: Path, items: Sequence[Item], source: Source, *, truncate: bool) -> Texts:
    """Tokenizes texts as the service will, and checks their labels.

    Args:
        path: of the file.
        items: its texts.
        source: the checkpoint.
        truncate: cuts texts that are too long instead of refusing them.

    Raises:
        InvalidRequest: a text is empty or too long, or a label is none of the model's.
    """
    known: dict[str, Any] = {"labels": source.labels, "task": source.task}
    truth = truth_of(items, Manifest.model_construct(**known))
    encoder = text_encoder(source.tokenizer, source.max_tokens, source.vocab_size, source.type_vocab_size)
    try:
        encoded = [Input.of(item.content, item.where).encode(encoder, truncate=truncate) for item in items]
    except InputTooLong as error:
        raise InputTooLong(str(error).replace("set truncate", "give --truncate")) from None
    return Texts(path.name, file_sha256(path), encoded, truth)


def drawn(texts: Texts, count: int) -> Texts:
    """That many of the texts, drawn by lot; all where there are no more."""
    if count >= len(texts.encoded):
        return texts
    places = np.sort(np.random.default_rng(SEED).permutation(len(texts.encoded))[:count])
    truth = None if texts.truth is None else texts.truth[places]
    return replace(texts, encoded=[texts.encoded[place] for place in places], truth=truth)


def ranges_of(
    texts: Texts, ends: Sequence[int] | None, max_tokens: int, *, min_agreement: float, confidence: float
) -> list[Range]:
    """The ranges of lengths that have texts.

    Args:
        texts: all of them.
        ends: longest lengths of the ranges; None takes powers of 2 between which there are texts enough.
        max_tokens: of the model.
        min_agreement: what a range must be able to show, where `ends` is None.
        confidence: at which.
    """
    lengths = texts.tokens
    longest = int(lengths.max())  # of longer ones the texts say nothing, whatever the model takes
    if ends is None:
        found = bucket_ends(lengths, AMPLE * texts_needed(min_agreement, confidence, 2), max_tokens)
        ends = [*(end for end in found if end < longest), longest]
    if ends[-1] < longest:
        ends = [*ends, longest]
    ranges = []
    for low, high in zip((0, *ends), ends, strict=False):
        places = np.flatnonzero((lengths > low) & (lengths <= high))
        if len(places):
            ranges.append(Range(low + 1, high, places, int(np.median(lengths[places]))))
    return ranges
