"""The bundles in `examples/bundles`: they pass the check at load, and company changes no bit of an answer."""

import random
from pathlib import Path

import numpy as np
import pytest

from attenuator.bundle import MANIFEST, MODEL
from attenuator.runtime import Row, load
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

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
        knobs = {
            name: min(index, int(row.high)) if row.dtype == "int32" else row.low + (row.high - row.low) * index / 49
            for name, row in model.knobs.rows.items()
        }
        rows.append(Row(encoded.token_ids, encoded.type_ids, model.knobs.check(knobs), draw.randrange(2**53)))
    together = model.run(rows)
    for row, batched in zip(rows, together, strict=True):
        [alone] = model.run([row])
        assert np.array_equal(alone.logits, batched.logits)
        assert alone.value_flops == batched.value_flops
    assert len({batched.logits.tobytes() for batched in together}) > 25


@pytest.mark.parametrize("tokens", [40, 300])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("name", ["reviews-mca", "sentiment"])
def test_predicted_share_of_the_value_projection_is_near_the_one_computed(name: str, alpha: float, tokens: int) -> None:
    """Good to a factor of two is what admission and lanes need."""
    folder = next(path.parent for path in BUNDLES if path.parent.name == name)
    model = load(folder, check=False)
    ids = model.encode(" ".join(WORDS * 20), truncate=True).token_ids[:tokens]
    [result] = model.run([Row(ids, ids * 0, model.knobs.exact() | {"alpha": alpha})])
    assert result.value_flops is not None
    work = count_work(read_graph(folder / MODEL))
    exact, predicted = (model.predict_cost(tokens, {"alpha": value}) for value in (0.0, alpha))
    share = 1 - (exact - predicted) / work.projection_macs(tokens)
    assert result.value_flops / 2 < share < result.value_flops * 2
