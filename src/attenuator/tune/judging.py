"""What the judging texts say of bundles: agreement of every setting, and its speed in turns on one core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.calibration.proportions import proportion
from attenuator.calibration.turns import Timing, in_turns
from attenuator.commands.calibrate.pipeline import Outcome
from attenuator.commands.calibrate.texts import correct
from attenuator.export.trial import spread
from attenuator.ops.knobs import Knobs, KnobValue
from attenuator.runtime import Encoded, Model, Row
from attenuator.runtime import load as load_bundle
from attenuator.runtime.calibrated import default_knobs
from attenuator.runtime.scores import agrees
from attenuator.tune.changes import default_logits
from attenuator.tune.result import CONFIDENCE, Candidate, Point
from attenuator.tune.texts import Parts

TIMED_S, MAX_ROUNDS = 6.0, 200

KnobsOf = Callable[[int], Mapping[str, KnobValue]]


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A bundle of the tuning, and what the texts say of it.

    Attributes:
        folder: where it lies until it is taken.
        manifest: its own.
        outcome: of its calibration.
    """

    folder: Path
    manifest: Manifest
    outcome: Outcome


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


def timings(bundles: Sequence[Exported], parts: Parts) -> tuple[list[list[Timing]], int]:
    """Of every bundle its calibrated settings and last its default; and how many texts a batch has."""
    contenders, lengths = [], []
    for each in bundles:
        model = load_bundle(each.folder, threads=1, check=False)
        calibration = each.outcome.calibration
        fixed: list[Knobs] = [model.knobs.check(setting.knobs) for setting in calibration.settings]
        own = [Contender(model, lambda tokens, knobs=knobs: knobs) for knobs in fixed]  # type: ignore[misc]
        own.append(Contender(model, partial(default_knobs, model.knobs, calibration)))
        contenders += own
        lengths.append(len(own))
    timed, count = texts_a_second(contenders, parts.judging.encoded)
    ends = np.cumsum(lengths)
    return [timed[end - length : end] for end, length in zip(ends, lengths, strict=True)], count


def candidate(each: Exported, timed: Sequence[Timing], parts: Parts) -> Candidate:
    """A bundle's settings with their agreement, accuracy and speed."""
    manifest, outcome = each.manifest, each.outcome
    logits = [outcome.at(setting.knobs) for setting in outcome.calibration.settings]
    logits.append(default_logits(outcome, parts.judging.tokens))

    def point(knobs: Knobs, answers: npt.NDArray[np.float32], timing: Timing) -> Point:
        same = agrees(answers, outcome.exact, task=manifest.task, thresholds=manifest.thresholds)
        truth = parts.judging.truth
        right = None if truth is None else correct(answers, truth, manifest)
        accuracy = None if right is None else proportion(int(right.sum()), len(right), CONFIDENCE)
        agreement = proportion(int(same.sum()), len(same), CONFIDENCE)
        return Point(knobs, agreement, accuracy, timing.gain, timing.low, timing.high)

    named: list[Knobs] = [*(setting.knobs for setting in outcome.calibration.settings), {}]
    *points, default = map(point, named, logits, timed)
    return Candidate(manifest.precision, outcome.calibration, points, default, manifest.taught is not None)
