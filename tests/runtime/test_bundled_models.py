"""The bundles in `examples/bundles`: they pass the check at load, and company changes no bit of an answer."""

import random
from pathlib import Path

import numpy as np
import pytest

from attenuator.bundle import MANIFEST
from attenuator.runtime import Row, load

BUNDLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "bundles").glob(f"*/{MANIFEST}"))
TEXT = "the film was a quiet and moving one but the agreement may be terminated by either party at any time"
WORDS = TEXT.split()


@pytest.mark.parametrize("folder", [path.parent for path in BUNDLES], ids=lambda folder: folder.name)
def test_fifty_rows_with_fifty_knobs_answer_as_alone(folder: Path) -> None:
    model = load(folder)
    draw = random.Random(3)
    rows = []
    for index in range(50):
        encoded = model.encode(" ".join(draw.choices(WORDS, k=draw.choice([1, 4, 30, 200, 450]))), truncate=True)
        given = {
            name: min(index, int(row.high)) if row.dtype == "int32" else row.low + (row.high - row.low) * index / 49
            for name, row in model.knobs.rows.items()
        }
        rows.append(Row(encoded.token_ids, encoded.type_ids, model.knobs.check(given), draw.randrange(2**53)))
    together = model.run(rows)
    for row, found in zip(rows, together, strict=True):
        [alone] = model.run([row])
        assert np.array_equal(alone.logits, found.logits)
        assert alone.value_flops == found.value_flops
    assert len({found.logits.tobytes() for found in together}) > 25
