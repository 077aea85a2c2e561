"""From what each text answered at each setting to what `calibration.json` says of buckets and settings.

A goal walks along a bucket's frontier and ends at the first setting whose bound is too low; see `goals`. That keeps its
promise only if the order of the walk does not depend on the agreements that the bounds are made of:

* with one knob the order follows from predicted time alone, and every text counts for the bounds;
* with several, settings that another one beats in both time and agreement must go, or the walk would end at the first
  bad bargain. A third of the texts, drawn by lot, chooses; bounds, intervals and shares come from the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attenuator.calibration.proportions import fewest_divided, fewest_texts, proportion
from attenuator.calibration.schema import Bucket, Setting

CHOOSING_SHARE = 1 / 3
# A bucket gets this many times the texts that show the goal if no answer changes: some answers do.
AMPLE = 2
SEED = 0

Bools = npt.NDArray[np.bool_]
PredictedTime = Callable[[int, Mapping[str, float]], float]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What every text answered at every setting.

    Attributes:
        settings: value by knob name, S of them; the first is exact.
        tokens: int `[texts]`, their lengths.
        agree: bool `[S, texts]`, whether the answer agrees with the exact one.
        correct: bool `[S, texts]`, whether it is the label that was given; None without labels.
    """

    settings: Sequence[Mapping[str, float]]
    tokens: npt.NDArray[np.int64]
    agree: Bools
    correct: Bools | None = None

    @property
    def several_knobs(self) -> bool:
        """Whether a part of the texts must choose the frontier."""
        return len(self.settings[0]) > 1


def texts_needed(min_agreement: float, confidence: float, knobs: int) -> int:
    """Texts of a bucket that can show an agreement if no answer changes, those that choose the frontier included."""
    judging = fewest_texts(min_agreement, confidence)
    return max(fewest_divided(judging, CHOOSING_SHARE), 2) if knobs > 1 else judging  # of one text no third chooses


def bucket_ends(tokens: npt.NDArray[np.int64], fewest: int, max_tokens: int) -> list[int]:
    """Longest lengths of the buckets, each a power of 2 but for the last.

    Args:
        tokens: int `[texts]`, lengths of the texts.
        fewest: texts that a bucket must have, where there are so many.
        max_tokens: of the bundle, where the last bucket ends.
    """
    ends: list[int] = []
    end, start = 1, 0
    while (end := 2 * end) < max_tokens:
        inside, above = ((tokens > start) & (tokens <= end)).sum(), (tokens > end).sum()
        if inside >= fewest and above >= fewest:
            ends.append(end)
            start = end
    return [*ends, max_tokens]


def undominated(times: Sequence[float], quality: Sequence[float]) -> list[int]:
    """Places that no other beats in both time and quality, in order of falling time; the first place always stays.

    Args:
        times: of each place, the lower the better.
        quality: of each place, the higher the better; of equals the faster one stays, of wholly equal ones the first.
    """
    kept: list[int] = []
    best = -np.inf
    for place in sorted(range(1, len(times)), key=lambda each: (times[each], -quality[each], each)):
        if times[place] < times[0] and quality[place] > best:
            kept.append(place)
            best = quality[place]
    return [0, *reversed(kept)]


def summarise(
    answers: Answers,
    predicted: PredictedTime,
    *,
    defaults: Mapping[str, float],
    min_agreement: float,
    confidence: float,
    max_tokens: int,
    others: Collection[int] = (),
) -> tuple[list[Bucket], list[Setting]]:
    """The buckets and the settings of `calibration.json`.

    Args:
        answers: of all texts.
        predicted: time of a text by its length and setting; only ratios count.
        defaults: the bundle's default of each knob, a setting that was measured.
        min_agreement: the goal that a bucket must have texts enough for.
        confidence: of intervals and bounds.
        max_tokens: of the bundle.
        others: places of further settings to keep: those of lists.

    Returns:
        The buckets with their frontiers, and the settings on any of them; the defaults are always among them, since
        most answers are given at them.
    """
    fewest = AMPLE * texts_needed(min_agreement, confidence, len(answers.settings[0]))
    ends = bucket_ends(answers.tokens, fewest, max_tokens)
    starts = [0, *ends]
    generator = np.random.default_rng(SEED)
    measured = [
        _bucket(answers, np.flatnonzero((answers.tokens > low) & (answers.tokens <= high)), predicted, generator)
        for low, high in zip(starts, ends, strict=False)
    ]
    frontiers = {place for each in measured for place in each.frontier}
    kept = sorted({list(answers.settings).index(defaults), *frontiers, *others})
    buckets = [
        Bucket(low=low + 1, high=high, texts=len(each.texts), frontier=[kept.index(place) for place in each.frontier])
        for low, high, each in zip(starts, ends, measured, strict=False)
    ]

    def proportions(rows: Bools, place: int) -> list[object]:
        return [proportion(int(rows[place, each.texts].sum()), len(each.texts), confidence) for each in measured]

    settings = [
        Setting.model_validate(
            {
                "knobs": dict(answers.settings[place]),
                "agreement": proportions(answers.agree, place),
                "accuracy": [] if answers.correct is None else proportions(answers.correct, place),
                "time": [each.times[place] for each in measured],
            }
        )
        for place in kept
    ]
    return buckets, settings


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """One bucket: the texts that its figures come from, the frontier, times as shares of the exact setting's."""

    texts: npt.NDArray[np.int64]
    frontier: list[int]
    times: list[float]


def _bucket(
    answers: Answers, texts: npt.NDArray[np.int64], predicted: PredictedTime, generator: np.random.Generator
) -> _Measured:
    """Chooses the frontier of the texts of one bucket."""
    median = int(np.median(answers.tokens[texts]))
    times = [predicted(median, setting) / predicted(median, answers.settings[0]) for setting in answers.settings]
    if not answers.several_knobs:  # the grid falls in accuracy
        return _Measured(texts, undominated(times, [-place for place in range(len(times))]), times)
    drawn = generator.permutation(texts)
    choosing = round(CHOOSING_SHARE * len(drawn))
    quality = answers.agree[:, drawn[:choosing]].mean(axis=1)
    return _Measured(np.sort(drawn[choosing:]), undominated(times, quality.tolist()), times)
