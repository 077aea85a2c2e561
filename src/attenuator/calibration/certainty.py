"""Certainty of a single answer: from its margins to the probability that it agrees with the exact answer.

A *margin* is what an answer's label has over another one, or a label over its threshold, in logits. Calibration runs
every text at every setting and exactly, so it sees by how much margins move. A setting's *scale* at some length is the
root mean square of what is left of the exact margins once they are predicted by the answers' own, by one factor; the
factor goes into the scale. A margin d then keeps its sign with a probability of about Phi(d / scale), here the logistic
curve that is nearest to it, and an answer agrees where all its margins keep theirs: with r, the product over them,

    log-odds that it agrees = intercept + slope * log(r / (1 - r))

The curve would be right with intercept 0 and slope 1 if margins moved independently and normally. They do not quite,
so both are fitted to which answers agreed: for all settings together, then for each one, held near the common values by
a prior (ridge), since a setting with few answers that changed says little. In a regression the one margin is the
tolerance.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attenuator.calibration.schema import Bucket, Certainty, SettingCertainty

RATE = 1.702  # of the logistic curve that is nearest to the normal one (Haley 1952)
LEAST_DISTANCE_TO_ONE = 1e-12
POOLED_TEXTS = 8  # of a bucket's scale: this many texts' worth of the scale of all lengths
COMMON_PRECISION = np.array([1.0, 1.0])  # of the prior at intercept 0, slope 1
SETTING_PRECISION = np.array([4.0, 16.0])  # of each setting's prior at the common values
ROUNDS, CONVERGED = 100, 1e-9
DIGITS = 6
GOALS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Deviations:
    """How one setting's answers differ from the exact ones.

    Attributes:
        knobs: the setting.
        margins: float64 `[texts, M]`, of its answers; in a regression the scores.
        exact: float64 `[texts, M]`, what the exact answers have in the same places.
        agree: bool `[texts]`.
    """

    knobs: Mapping[str, float]
    margins: Floats
    exact: Floats
    agree: Bools


def probability(certainty: Certainty, setting: SettingCertainty, bucket: int, margins: npt.ArrayLike) -> float:
    """The probability that an answer agrees with the exact one.

    Args:
        certainty: of the calibration.
        setting: one of it, at which the answer was given.
        bucket: of the text's length.
        margins: `[M]`, of the answer.

    Returns:
        Above 0, with two labels at least 0.5, and at most (n + 1) / (n + 2) with n texts that were measured (Laplace's
        rule of succession).
    """
    widths = _widths(np.asarray(margins, dtype=np.float64), certainty.tolerance)
    inputs = _log_odds(widths, np.asarray(setting.scale[bucket]))
    line = np.array([setting.intercept, setting.slope])
    return float(_probability(inputs, line, _least(widths, certainty.tolerance), certainty.texts))


def expected_share(certainty: Certainty, setting: SettingCertainty, bucket: int, goal: float) -> float:
    """The share of texts whose answers reach a probability at a setting.

    Args:
        certainty: of the calibration.
        setting: one of it.
        bucket: of the texts' length.
        goal: the probability.

    Returns:
        What was measured for the next goal that is at least as high; 0 above all of them.
    """
    place = bisect_left(certainty.goals, goal)
    return setting.sure[bucket][place] if place < len(certainty.goals) else 0.0


def fit(
    deviations: Sequence[Deviations],
    tokens: npt.NDArray[np.int64],
    buckets: Sequence[Bucket],
    tolerance: float | None = None,
) -> Certainty:
    """Fits the model to what was measured.

    Args:
        deviations: of every setting but the exact one.
        tokens: int64 `[texts]`, lengths of the texts.
        buckets: of the calibration.
        tolerance: of a regression.
    """
    places = np.searchsorted([bucket.high for bucket in buckets[:-1]], tokens)
    scales = [_scales(each, places, len(buckets), tolerance) for each in deviations]
    inputs = [
        _log_odds(_widths(each.margins, tolerance), scale[places])
        for each, scale in zip(deviations, scales, strict=True)
    ]
    agree = [each.agree for each in deviations]
    common = np.array([0.0, 1.0])
    if deviations:
        common = _fitted(np.concatenate(inputs), np.concatenate(agree), common, COMMON_PRECISION)
    lines = [_fitted(one, right, common, SETTING_PRECISION) for one, right in zip(inputs, agree, strict=True)]
    settings = [
        SettingCertainty(
            knobs=dict(each.knobs),
            scale=[_short(value) for value in scale],
            intercept=_short(line[0]),
            slope=_short(line[1]),
            sure=_sure(_probability(one, line, _least(each.margins, tolerance), len(tokens)), places, len(buckets)),
        )
        for each, scale, line, one in zip(deviations, scales, lines, inputs, strict=True)
    ]
    return Certainty(texts=len(tokens), tolerance=tolerance, goals=list(GOALS), settings=settings)


def _sure(probabilities: Floats, places: npt.NDArray[np.int64], buckets: int) -> list[list[float]]:
    """Share of each bucket's texts that reach each of `GOALS`."""
    inside = [probabilities[places == bucket] for bucket in range(buckets)]
    return [[_short((each >= goal).mean()) if len(each) else 0.0 for goal in GOALS] for each in inside]


def _probability(inputs: Floats, line: Floats, least: float, texts: int) -> Floats:
    """Probabilities from log-odds, by intercept and slope, at most what so many texts show."""
    return np.clip(_logistic(line[0] + line[1] * inputs), least, most_shown(texts))


def most_shown(texts: int) -> float:
    """The largest probability that so many texts can show (Laplace's rule of succession)."""
    return (texts + 1) / (texts + 2)


def _least(margins: Floats, tolerance: float | None) -> float:
    """With two labels, an answer whose margin says nothing is the exact one half of the time."""
    return 0.5 if margins.shape[-1] == 1 and tolerance is None else 0.0


def _logistic(log_odds: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(log_odds / 2)))


def _short(value: float) -> float:
    """A number without the digits that say nothing, for the file."""
    return float(f"{value:.{DIGITS}g}")


def _widths(margins: Floats, tolerance: float | None) -> Floats:
    return np.abs(margins) if tolerance is None else np.full_like(margins, tolerance)


def _log_odds(widths: Floats, scale: Floats) -> Floats:
    """Log-odds that all margins keep their sign.

    Args:
        widths: float64 `[..., M]`, their distances from 0.
        scale: float64 `[...]`.
    """
    lengths = widths / np.maximum(scale, LEAST_DISTANCE_TO_ONE)[..., np.newaxis]
    log_share = np.minimum(-np.logaddexp(0.0, -RATE * lengths).sum(axis=-1), -LEAST_DISTANCE_TO_ONE)
    return np.asarray(log_share - np.log(-np.expm1(log_share)))


def _scales(one: Deviations, places: npt.NDArray[np.int64], buckets: int, tolerance: float | None) -> Floats:
    """The scale of each bucket, drawn a little to that of all texts; float64 `[buckets]`."""
    everywhere = np.ones(len(places), dtype=bool)
    width = max(1, one.margins.shape[-1])
    whole = _residual_squares(one, everywhere, tolerance) / (len(places) * width)
    squares = [_residual_squares(one, places == bucket, tolerance) for bucket in range(buckets)]
    counts = np.bincount(places, minlength=buckets) * width
    pooled = POOLED_TEXTS * width
    return np.asarray(np.sqrt((np.array(squares) + pooled * whole) / (counts + pooled)))


def _residual_squares(one: Deviations, texts: Bools, tolerance: float | None) -> float:
    """Squares of the exact margins less the answers' times the best factor, divided by that factor's square."""
    margins, exact = one.margins[texts], one.exact[texts]
    if tolerance is not None:
        return float(((exact - margins) ** 2).sum())
    products, squares = float((margins * exact).sum()), float((margins**2).sum())
    factor = products / squares if squares else 1.0
    if factor <= 0:  # the answers say nothing of the exact ones
        return float((exact**2).sum() + squares)
    return float(((exact / factor - margins) ** 2).sum())


def _fitted(inputs: Floats, agree: Bools, prior: Floats, precision: Floats) -> Floats:
    """Logistic regression with a normal prior, by Newton's method.

    Steps are halved until the loss falls: where the common values are far off, as with many labels whose margins move
    together, full steps would jump from one side of the minimum to the other for ever.

    Args:
        inputs: float64 `[texts]`.
        agree: bool `[texts]`.
        prior: intercept and slope before the texts are seen.
        precision: of each of the two.

    Returns:
        Intercept and slope, which is at least 0: a wider margin never makes an answer less sure. Where it would be
        negative, the intercept is that of a level line.
    """
    design = np.stack([np.ones_like(inputs), inputs], axis=-1)

    def loss(line: Floats) -> float:
        log_odds = design @ line
        return float((np.logaddexp(0.0, log_odds) - agree * log_odds).sum() + precision @ (line - prior) ** 2 / 2)

    line, now = prior.copy(), loss(prior)
    for _ in range(ROUNDS):
        shares = _logistic(design @ line)
        gradient = design.T @ (agree - shares) - precision * (line - prior)
        curvature = (design * (shares * (1 - shares))[:, np.newaxis]).T @ design + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)
        while not loss(line + step) <= now and np.abs(step).max() >= CONVERGED:
            step = step / 2
        if np.abs(step).max() < CONVERGED:
            break
        line = line + step
        now = loss(line)
    if line[1] < 0:
        return _fitted(np.zeros_like(inputs), agree, np.array([prior[0], 0.0]), precision)
    return line
