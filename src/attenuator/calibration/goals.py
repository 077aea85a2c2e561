"""The cheapest setting that keeps an agreement: what `min_agreement` means.

Settings are tested in an order that was fixed before their agreement was looked at, from the exact one to the
cheapest, and the walk ends at the first that does not pass. This is fixed-sequence testing (Maurer, Hothorn and
Lehmacher 1995): for a setting that does not keep the goal to be chosen, the first such setting in the order must have
passed its own test, which happens with probability 1 - `confidence` at most. No correction for the number of settings
is due, and none for the number of goals: each goal is a walk of its own.
"""

from collections.abc import Sequence

from attenuator.calibration.schema import Calibration, Setting


def reaching(bounds: Sequence[float], min_agreement: float) -> int:
    """How many settings of a frontier, from the exact one on, keep a goal; at least the exact one.

    Args:
        bounds: lower bound of each setting's agreement, from the exact one to the cheapest.
        min_agreement: the goal, 0 to 1.
    """
    return next((place for place, bound in enumerate(bounds) if place and bound < min_agreement), len(bounds))


def cheapest(calibration: Calibration, tokens: int, min_agreement: float) -> Setting:
    """The cheapest setting whose agreement is at least the goal, at the calibration's confidence.

    Args:
        calibration: of the bundle.
        tokens: length of the text, which says in which bucket to look.
        min_agreement: the goal, 0 to 1.

    Returns:
        The setting; the exact one where no cheaper one is sure enough to keep the goal.
    """
    bucket = calibration.bucket(tokens)
    settings = calibration.frontier(bucket)
    return settings[reaching([setting.agreement[bucket].bound for setting in settings], min_agreement) - 1]
