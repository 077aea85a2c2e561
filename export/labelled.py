"""Texts with the labels that they should get: read from JSON lines, run through the PyTorch model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.errors import InvalidRequest
from attenuator.export import thresholds
from attenuator.export.samples import eager_logits
from attenuator.export.source import Source
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Row
from attenuator.runtime.scores import sigmoid
from attenuator.runtime.tokens import TextEncoder
from attenuator.texts import label_places, label_text, lines_of

__all__ = ["fit_thresholds", "matrix_of"]


def fit_thresholds(
    path: Path, source: Source, manifest: Manifest, tokenizer: Path, note: Callable[[str], None]
) -> list[float]:
    """Fits the thresholds of a multi-label model to the scores of the PyTorch model; see `thresholds.fit`.

    Args:
        path: JSON lines: an input as the HTTP API takes it, and `labels`, a list of names. Long texts are cut.
        source: the trained model.
        manifest: what the bundle will say.
        tokenizer: the bundle's `tokenizer.json`.
        note: called with a sentence about what was fitted, and with one about labels that keep 0.5.

    Raises:
        InvalidRequest: the file cannot be read or is empty, or a line is not an input with labels of the model.
        ExportError: the model fails.
    """
    items = list(lines_of(str(path), jsonl=True))
    if not items:
        raise InvalidRequest(f"{path} is empty, must have a JSON object with text and labels on each line")
    truth = matrix_of([(item.where, item.labels) for item in items], manifest.labels)
    encoder = TextEncoder.of_bundle(tokenizer, manifest)
    encoded = [Input.of(item.content, item.where).encode(encoder, truncate=True) for item in items]
    rows = [Row(one.token_ids, one.type_ids if source.has_token_types else one.type_ids * 0, {}) for one in encoded]
    return thresholds.fit(sigmoid(eager_logits(source, rows)), truth, manifest.labels, note)


def matrix_of(rows: Sequence[tuple[str, object]], labels: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which text has which label.

    Args:
        rows: where each text comes from, for sentences, and its labels as the file has them.
        labels: of the model.

    Returns:
        bool `[texts, labels]`.

    Raises:
        InvalidRequest: a text's labels are not a list of the model's.
    """
    truth = np.zeros((len(rows), len(labels)), dtype=bool)
    for where, named in rows:
        if not isinstance(named, list):
            actual = "has no labels" if named is None else f"has labels that are {shown(named)}"
            raise InvalidRequest(f"{where} {actual}, must have a list of label names, which may be empty")
    column = label_places((label_text(name) or "" for _, named in rows for name in cast(list[object], named)), labels)
    for row, (where, named) in zip(truth, rows, strict=True):
        for name in cast(list[object], named):
            label = label_text(name)
            if label not in column:
                quoted = ascii(name)[:80] if isinstance(name, str) else shown(name)
                raise InvalidRequest(
                    f"{where} has the label {quoted}, must be one of the model's: {thresholds.some(labels)}"
                )
            row[column[label]] = True
    return truth
