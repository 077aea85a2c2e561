"""The standard error of a score from draws, for every task, against scores whose deviation is known."""

import numpy as np
import pytest

from attenuator.bundle import Task
from attenuator.runtime.sampling import DRAWS, standard_error
from attenuator.runtime.scores import SCORES

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
