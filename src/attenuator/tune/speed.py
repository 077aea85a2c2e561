"""Texts a second of bundles at their settings, in packed batches as the service runs them, in turns on one core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attenuator.calibration.turns import Timing, in_turns
from attenuator.export.trial import spread
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model, Row

TIMED_S, MAX_ROUNDS = 6.0, 200

KnobsOf = Callable[[int], Mapping[str, KnobValue]]


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A bundle at a setting, which may depend on a text's length.

    Attributes:
        model: on one thread.
        knobs_of: checked values by knob name, for a length in tokens.
    """

    model: Model
    knobs_of: KnobsOf


def texts_a_second(contenders: Sequence[Contender], texts: Sequence[Encoded]) -> tuple[list[Timing], int]:
    """Times one packed batch of each contender, in turns; every gain is over the first.

    Args:
        contenders: the first is what the others are compared with.
        texts: of which a sample is run.

    Returns:
        A timing of a batch for each, and how many texts a batch has.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    timed = spread(texts)
    runs = []
    for each in contenders:
        rows = [Row(text.token_ids, text.type_ids, each.knobs_of(len(text.token_ids))) for text in timed]
        runs.append(partial(each.model.run, rows))
    return in_turns(runs, TIMED_S, threads=1, max_rounds=MAX_ROUNDS), len(timed)
