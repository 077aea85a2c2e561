"""Calibrations for tests: written down, or measured on a bundle in a few seconds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.bundle import CALIBRATION, read_manifest
from attenuator.calibration import Calibration
from attenuator.calibration.proportions import proportion
from attenuator.runtime import Encoded, Model, Row

CONFIDENCE = 0.95


def calibration(
    revision: str,
    ends: Sequence[int],
    settings: Sequence[tuple[Mapping[str, float], Sequence[int]]],
    trials: int = 1000,
    **fields: Any,
) -> dict[str, Any]:
    """The content of a `calibration.json`.

    Args:
        revision: of the bundle.
        ends: longest length of each bucket.
        settings: knobs, and how many of the texts agree in each bucket; the first is exact.
        trials: texts of each bucket.
        fields: in place of others.
    """
    starts = [0, *ends]
    return {
        "format_version": 1,
        "revision": revision,
        "confidence": CONFIDENCE,
        "data": "texts.jsonl",
        "data_sha256": "0" * 64,
        "texts": trials * len(ends),
        "buckets": [{"low": low + 1, "high": high, "texts": trials} for low, high in zip(starts, ends, strict=False)],
        "settings": [
            {
                "knobs": dict(knobs),
                "agreement": [proportion(count, trials, CONFIDENCE).model_dump() for count in counts],
            }
            for knobs, counts in settings
        ],
    } | fields


def parsed(content: Mapping[str, Any]) -> Calibration:
    """A calibration as it is read from a file."""
    return Calibration.model_validate_json(json.dumps(content))


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Writes a bundle's calibration."""
    (folder / CALIBRATION).write_text(json.dumps(content))


def labels(model: Model, texts: Sequence[Encoded], knobs: Mapping[str, float]) -> list[str]:
    """What the model says of texts at a setting."""
    checked = model.knobs.check(knobs)
    results = model.run([Row(text.token_ids, text.type_ids, checked) for text in texts])
    return [model.predict(result.logits).label for result in results]


def measured(
    model: Model, lengths: Sequence[int], settings: Sequence[Mapping[str, float]], trials: int = 64
) -> dict[str, Any]:
    """A calibration measured on random token ids, one bucket a length.

    Args:
        model: the bundle.
        lengths: tokens of the texts of each bucket; the last bucket goes on to the longest input.
        settings: the exact one first.
        trials: texts of each bucket.
    """
    random = np.random.default_rng(0)
    vocabulary = model.manifest.vocab_size
    counts: list[list[int]] = [[] for _ in settings]
    for length in lengths:
        texts = [model.from_ids(random.integers(0, vocabulary, length).tolist()) for _ in range(trials)]
        answers = [labels(model, texts, knobs) for knobs in settings]
        for row, each in zip(counts, answers, strict=True):
            row.append(sum(label == exact for label, exact in zip(each, answers[0], strict=True)))
    ends = [*lengths[:-1], model.manifest.max_tokens]
    return calibration(model.manifest.revision, ends, list(zip(settings, counts, strict=True)), trials)


def promising(folder: Path) -> Path:
    """Writes a calibration with a default goal to a bundle of `tiny.write(.., "yoso")`.

    Up to 24 tokens 16 hashes keep 0.99 as measured and promise 0.97; above that it takes 64.
    """
    measured = {0: (1000, 1000), 64: (995, 999), 16: (992, 980), 4: (980, 900)}
    sure = [
        {"knobs": {"num_hashes": hashes}, "scale": [1.0] * 2, "intercept": 0.0, "slope": 1.0, "sure": [[0.5]] * 2}
        for hashes in measured
        if hashes
    ]
    settings = [({"num_hashes": hashes}, counts) for hashes, counts in measured.items()]
    certainty = {"texts": 1000, "goals": [0.9], "settings": sure}
    revision = read_manifest(folder).revision
    write(folder, calibration(revision, [24, 8192], settings, default_agreement=0.99, certainty=certainty))
    return folder
