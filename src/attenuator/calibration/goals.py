"""The cheapest setting that keeps an agreement: what `min_agreement` means, and what requests that set nothing get.

Settings are tested in an order that was fixed before their agreement was looked at, from the exact one to the
cheapest, and the walk ends at the first that does not pass. This is fixed-sequence testing (Maurer, Hothorn and
Lehmacher 1995): for a setting that does not keep the goal to be chosen, the first such setting in the order must have
passed its own test, which happens with probability 1 - `confidence` at most. No correction for the number of settings
is due, and none for the number of goals: each goal is a walk of its own.
"""

import itertools
import math
from collections.abc import Sequence

from attenuator.bundle import Manifest
from attenuator.calibration.schema import Calibration, Setting
from attenuator.errors import GoalOutOfReach


def reaching(agreements: Sequence[float], min_agreement: float) -> int:
    """How many settings of a frontier, from the exact one on, keep a goal; 0 where not even the exact one does.

    Args:
        agreements: of each setting, from the exact one to the cheapest, what is compared with the goal: lower bounds,
            or estimates.
        min_agreement: the goal, 0 to 1.
    """
    return next((place for place, each in enumerate(agreements) if each < min_agreement), len(agreements))


def cheapest(calibration: Calibration, tokens: int, min_agreement: float) -> Setting:
    """The cheapest setting whose agreement is at least the goal, at the calibration's confidence.

    Args:
        calibration: of the bundle.
        tokens: length of the text, which says in which bucket to look.
        min_agreement: the goal, 0 to 1.

    Returns:
        The setting; the exact one where no cheaper one is sure enough to keep the goal.

    Raises:
        GoalOutOfReach: rounding alone changes more answers than the goal allows.
    """
    bucket = calibration.bucket(tokens)
    kept = reaching(calibration.bounds(bucket), min_agreement)
    if not kept:
        raise out_of_reach(calibration, bucket, min_agreement)
    return calibration.frontier(bucket)[kept - 1]


def default_setting(calibration: Calibration, tokens: int) -> Setting:
    """The setting of a request that sets nothing: the same walk, over estimates in place of lower bounds.

    A request's `min_agreement` is a promise, which holds at the calibration's confidence: there a setting's lower bound
    has to reach the goal. `default_agreement` is an expectation: here the share that was measured has to reach it, and
    the answer states that share as `expected_agreement`. Texts that are not enough to promise a goal may still choose,
    but 24 texts that all agree do not show 0.99.
    Agreement falls along the frontier, so estimates that rise by chance are first averaged with those before them.

    Args:
        calibration: of the bundle, with a `default_agreement`.
        tokens: length of the text, which says in which bucket to look.

    Returns:
        The last setting before the first whose estimate, made to fall, is below `default_agreement`; the exact one
        where no other reaches it.
    """
    bucket = calibration.bucket(tokens)
    return calibration.frontier(bucket)[keeping_default(calibration, bucket) - 1]


def keeping_default(calibration: Calibration, bucket: int) -> int:
    """How many settings of a bucket's frontier, from the exact one on, are estimated to keep the default agreement.

    Args:
        calibration: of the bundle, with a `default_agreement`.
        bucket: of the text's length.

    Returns:
        At least 1: without a better setting the exact one runs, even if rounding misses the goal.
    """
    assert calibration.default_agreement is not None
    rows = [setting.agreement[bucket] for setting in calibration.frontier(bucket)]
    estimates = [estimate(row.successes, row.trials) for row in rows]
    return max(1, reaching(falling(estimates), calibration.default_agreement))


def estimate(successes: int, trials: int) -> float:
    """The share that was measured, and at most what so many texts can show: 0.98, if they are 24.

    All that agree show no more than Jeffreys's estimate (1946) of them, which counts half a text against them.
    """
    return min(successes / trials, (trials + 0.5) / (trials + 1))


def fewest_estimated(min_agreement: float) -> int:
    """How many texts, all of which agree, are estimated to keep a goal; with fewer the estimate stays below it.

    Args:
        min_agreement: the goal, at least 0 and below 1.
    """
    rounded = math.ceil((min_agreement - 0.5) / (1 - min_agreement))  # 0.99 gives a little more than its 49
    return next(count for count in itertools.count(max(1, rounded - 1)) if estimate(count, count) >= min_agreement)


def falling(shares: Sequence[float]) -> list[float]:
    """Shares made to fall, at least squares: isotonic regression by pooling adjacent violators (Ayer et al. 1955).

    One chance fall below a goal, followed by settings above it, says little: of few hundred texts, one or two decide.

    Args:
        shares: each of the same number of texts.

    Returns:
        As many; each is the mean of a run of `shares`, none is above the one before.
    """
    runs: list[tuple[float, int]] = []  # mean and length
    for share in shares:
        mean, count = share, 1
        while runs and runs[-1][0] < mean:
            before, length = runs.pop()
            mean, count = (before * length + mean * count) / (length + count), length + count
        runs.append((mean, count))
    return [mean for mean, count in runs for _ in range(count)]


def out_of_reach(calibration: Calibration, bucket: int, min_agreement: float) -> GoalOutOfReach:
    """That a goal is above what a bundle's rounding is shown to keep.

    Args:
        calibration: of a bundle that is not fp32.
        bucket: of the text's length.
        min_agreement: the goal.
    """
    exact = calibration.settings[0].agreement[bucket]
    most = math.floor(exact.bound * 1e4) / 1e4
    return GoalOutOfReach(
        f"min_agreement {min_agreement:g} is above what this bundle's rounding is shown to keep: even at its exact "
        f"setting {exact.successes} of {exact.trials} answers at these lengths were the checkpoint's in fp32, an "
        f"agreement of at least {most:g} at {100 * calibration.confidence:g} % confidence; lower the goal, or serve "
        "the checkpoint in fp32",
        param="min_agreement",
        allowed=f"at most {most:g}",
    )


def how_to_calibrate(manifest: Manifest) -> str:
    """What gives a bundle the calibration that it lacks, for a sentence."""
    reference = " with --reference, a bundle of the same checkpoint in fp32" if manifest.rounded else ""
    return f"run 'attenuator calibrate' on its bundle{reference}"
