"""The standard error of a score from draws, for every task, against scores whose deviation is known."""

from pathlib import Path

import numpy as np
import pytest

from attenuator.bundle import BundleKnob, Task
from attenuator.ops import KNOBS
from attenuator.runtime import Row, load
from attenuator.runtime.request import KnobTable
from attenuator.runtime.sampling import DRAWS, draws_for, standard_error
from attenuator.runtime.scores import SCORES

BUNDLES = Path(__file__).resolve().parents[2] / "examples" / "bundles"
LOGITS: dict[Task, list[float]] = {
    "single_label": [0.4, -0.3, 1.1],
    "multi_label": [-0.4, 0.7, 0.2, -2.0],
    "regression": [3.5],
}
NOISE, TIMES = 0.01, 4000


@pytest.mark.parametrize("task", LOGITS)
@pytest.mark.parametrize("share", [0.25, 1.0], ids=["a fourth", "all"])
def test_its_square_is_right_in_the_mean(task: Task, share: float) -> None:
    """Draws with a fourth of the samples have twice the noise; with all of them, the answer is a draw as well."""
    random = np.random.default_rng(3)
    center = np.array(LOGITS[task])
    answers = (center + NOISE * random.standard_normal((TIMES, len(center)))).astype(np.float32)
    drawn = center + NOISE / np.sqrt(share) * random.standard_normal((TIMES, DRAWS, len(center)))
    errors = [
        standard_error(task, answer, list(draws.astype(np.float32)), share)
        for answer, draws in zip(answers, drawn, strict=True)
    ]
    top = SCORES[task](center).argmax()
    assert np.mean(np.square(errors)) == pytest.approx(SCORES[task](answers)[:, top].var(), rel=0.1)


@pytest.mark.parametrize("task", LOGITS)
def test_it_is_0_where_draws_do_not_differ(task: Task) -> None:
    logits = np.array(LOGITS[task], dtype=np.float32)
    assert standard_error(task, logits, [logits.copy() for _ in range(DRAWS)], 1.0) == 0


def test_draws_of_a_setting() -> None:
    model = load(BUNDLES / "reviews", check=False)
    [name] = model.knobs.names
    table = model.knobs
    long, short = 512, 32
    for value, tokens, drawn, share in (
        (512, long, 128, 0.25),
        (50, long, 12, 12 / 50),
        (32, long, 8, 0.25),
        (31, long, 31, 1.0),
        (1, long, 1, 1.0),
        (512, short, 128, 0.25),
        (511, short, 511, 1.0),
        (32, short, 32, 1.0),
    ):
        draws = draws_for(model.manifest, table, {name: value}, tokens)
        assert draws is not None
        assert (draws.knobs, draws.share) == ({name: drawn}, share)
    assert draws_for(model.manifest, table, table.exact(), long) is None
    fixed = model.manifest.model_copy(
        update={"attention": model.manifest.attention.model_copy(update={"operator": "softmax"})}
    )
    assert draws_for(fixed, table, {name: 8}, long) is None
    encoded = model.encode("good")
    rows = draws.rows(Row(encoded.token_ids, encoded.type_ids, {name: 1}, seed=2**53 - 1))
    assert len({row.seed for row in rows} | {2**53 - 1}) == DRAWS + 1
    assert all(0 <= row.seed < 2**53 for row in rows)


@pytest.mark.parametrize(
    ("operator", "attributes", "knob", "value", "longest"),
    [
        ("reformer", {"chunk_size": 16}, "num_rounds", 3, 96),
        ("reformer", {}, "num_rounds", 2, 256),
        ("bigbird", {"block_size": 4}, "num_random_blocks", 3, 44),
        ("bigbird", {"block_size": 4, "random_blocks": "first"}, "num_random_blocks", 3, 10_000),
    ],
)
def test_nothing_is_drawn_where_a_setting_is_exact_by_rule(
    operator: str, attributes: dict[str, int | str], knob: str, value: int, longest: int
) -> None:
    model = load(BUNDLES / "reviews", check=False)
    attention = model.manifest.attention.model_copy(update={"operator": operator, "attributes": attributes})
    manifest = model.manifest.model_copy(update={"attention": attention})
    table = KnobTable(model.manifest.name, [BundleKnob.model_validate(KNOBS[knob], from_attributes=True)])
    assert draws_for(manifest, table, {knob: value}, longest) is None
    drawn = draws_for(manifest, table, {knob: value}, longest + 1)
    assert (drawn is None) == ("random_blocks" in attributes)
    assert drawn is None or drawn.share == 1.0
