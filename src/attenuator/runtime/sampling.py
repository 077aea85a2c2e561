"""The standard error of a score, from the sampling itself: from further draws of the same text with other seeds.

Where a knob counts independent samples and the text is long enough, a draw has a fourth of them: four draws take about
the work of the answer's own sampling once more, and the variance of their mean estimates that of the answer. Elsewhere
a draw is the answer's own setting with another seed, and the answer is one of the draws. Draws are rows of the same
packed batch as the answer; its own row, and so its bits, are what they are without them.

Scores are taken as linear in the logits around the answer's own (delta method): scores of a draw with few samples may
be saturated where the answer's is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest, Task
from attenuator.ops import KNOBS, OPERATORS
from attenuator.ops.knobs import Knobs, KnobValue
from attenuator.ops.spec import SEED, SEED_HIGH
from attenuator.runtime.batch import Row
from attenuator.runtime.request import KnobTable
from attenuator.runtime.scores import SCORES, Logits
from attenuator.runtime.work import COSTS

DRAWS = 4
# The noise of few samples is smaller than in proportion: most rows of attention then have hardly any sample that is not
# 0, and more noise cannot show. It is in proportion once samples times tokens are many (variances of `reviews` from a
# fourth of 32 samples: 0.3 of the truth with 10 words, 0.5 with 30, 0.8 with 250).
FEWEST_SAMPLES, FEWEST_SAMPLES_TIMES_TOKENS = 8, 4096  # of a draw
SEED_STEP = 0x13C6EF372FE94F  # 2^53 over the golden ratio, odd: seeds of draws lie far from those that callers choose

# An operator's key, its attributes with their defaults, and the name of the knob.
_RandomKnob = tuple[str, Mapping[str, int | float | str], str]


@dataclass(frozen=True, slots=True)
class Draws:
    """What is run besides an answer.

    Attributes:
        knobs: of every draw.
        share: samples of a draw as a share of the answer's; 1 where the answer is a draw as well.
    """

    knobs: Knobs
    share: float

    def rows(self, row: Row) -> list[Row]:
        """The draws of an answer's row."""
        return [replace(row, knobs=self.knobs, seed=seed) for seed in draw_seeds(row.seed)]


def draw_seeds(seed: int) -> list[int]:
    """The seeds of the draws of an answer with a seed."""
    return [(seed + number * SEED_STEP) % (SEED_HIGH + 1) for number in range(1, DRAWS + 1)]


def draws_for(manifest: Manifest, table: KnobTable, knobs: Knobs, tokens: int) -> Draws | None:
    """The draws from which an answer's standard error is estimated.

    Args:
        manifest: of the bundle.
        table: its knobs.
        knobs: at which the answer is given, a value for every knob.
        tokens: length of the text.

    Returns:
        None where nothing is random about the answer, so that its standard error from sampling is 0.
    """
    random = [
        name
        for key, attributes, name in _random_knobs(manifest)
        if name in knobs and knobs[name] != table.rows[name].exact and COSTS[key].draws(attributes, tokens, knobs)
    ]
    if not random:
        return None
    changed: dict[str, KnobValue] = {}
    for name in random:
        value, row = int(knobs[name]), table.rows[name]
        samples = value // DRAWS
        few = samples < max(FEWEST_SAMPLES, row.low) or samples * tokens < FEWEST_SAMPLES_TIMES_TOKENS
        if few or KNOBS[name].sampling != "counted":
            return Draws(knobs, 1.0)
        changed[name] = samples
    return Draws({**knobs, **changed}, max(value / knobs[name] for name, value in changed.items()))


def _random_knobs(manifest: Manifest) -> tuple[_RandomKnob, ...]:
    """The knobs of a bundle at whose values answers depend on the seed."""
    attention = manifest.attention
    return _random_knobs_of(attention.operator, tuple(attention.attributes.items()), tuple(attention.other_nodes))


@lru_cache  # asked for every text of a request, at every setting that may be chosen
def _random_knobs_of(
    attention: str, attributes: tuple[tuple[str, int | float | str], ...], others: tuple[str, ...]
) -> tuple[_RandomKnob, ...]:
    found = []
    for operator in OPERATORS:
        if operator.key != attention and operator.key not in others:
            continue
        filled = operator.filled(dict(attributes) if operator.key == attention else {})
        draws = SEED in operator.inputs
        if operator.draws_unless is not None and operator.key == attention:
            name, value = operator.draws_unless
            draws = draws and filled.get(name) != value
        found += [(operator.key, filled, knob.name) for knob in operator.knobs if draws and knob.sampling != "none"]
    return tuple(found)


def standard_error(task: Task, logits: Logits, drawn: Sequence[Logits], share: float) -> float:
    """The standard error of an answer's score.

    Args:
        task: the bundle's.
        logits: float32 `[num_labels]`, of the answer.
        drawn: the same of its draws, two or more.
        share: `Draws.share`.

    Returns:
        In the unit of the score; from so few draws it is known to about 40 % of itself.
    """
    draws = [*drawn, logits] if share == 1.0 else drawn
    moved = np.asarray(draws, dtype=np.float64) - logits  # 0 and not nearly so where nothing is random
    return float(np.sqrt(share * (moved @ _slope(task, logits)).var(ddof=1)))


def _slope(task: Task, logits: Logits) -> npt.NDArray[np.float64]:
    """Derivative of the answer's score by the logits, float64 `[num_labels]`."""
    scores = SCORES[task](logits)
    top = int(scores.argmax())
    slope = np.zeros(len(scores))
    if task == "single_label":
        slope -= scores[top] * scores
    slope[top] += 1.0 if task == "regression" else scores[top] * (1.0 if task == "single_label" else 1 - scores[top])
    return slope
