"""Exported checkpoints: which there are, how they run, and what PyTorch says."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import CHECKPOINTS, VOCAB, reference

from attenuator.bundle import Manifest
from attenuator.runtime import Row
from attenuator.runtime.batch import pack

LENGTHS = [7, 1, 20, 3, 1, 44, 68]
CASES = [(name, attention) for name, checkpoint in CHECKPOINTS.items() for attention in checkpoint.attentions]
IDS = [f"{name}-{attention}" for name, attention in CASES]


def rows(manifest: Manifest, lengths: list[int], knobs: dict[str, float] | None = None) -> list[Row]:
    """Random sequences; knobs at their exact value unless given."""
    generator = np.random.default_rng(len(lengths))
    values = {knob.name: knob.exact for knob in manifest.knobs} | (knobs or {})
    return [
        Row(generator.integers(0, VOCAB, n), generator.integers(0, 2, n), values, seed=index)
        for index, n in enumerate(lengths)
    ]


def run(session: Any, manifest: Manifest, batch: list[Row]) -> dict[str, np.ndarray]:
    return dict(zip(manifest.outputs, session.run(manifest.outputs, pack(batch, manifest)), strict=True))


# A test asks the same checkpoint several times.
reference_of = functools.lru_cache(maxsize=4)(reference)


def eager_logits(checkpoint: Path, manifest: Manifest, batch: list[Row]) -> np.ndarray:
    """What PyTorch says about each row alone; `[B, labels]`."""
    eager = reference_of(checkpoint)
    typed = "token_type_ids" in manifest.inputs
    return np.stack([eager(row.token_ids, row.type_ids if typed else None) for row in batch])
