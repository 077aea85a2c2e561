"""Verdict on a knob that does not pay: one sentence, where it loses answers at every speed."""

from __future__ import annotations

from collections.abc import Mapping

from attenuator.calibration.schema import Calibration

__all__ = ["AGREEMENT", "cannot_pay", "warning"]

# Of the exact answers, what a setting must keep, and the share of tokens above which little is won.
AGREEMENT, LEAST_WORTH = 0.99, 0.9


def warning(
    knob: str, texts: int, kept: Mapping[float, float], agreement: float = AGREEMENT, *, rounded: bool = False
) -> str | None:
    """What to do where no small share keeps the answers.

    Args:
        knob: the share of tokens, by name.
        texts: that were measured.
        kept: agreement with the exact answers by share of tokens, 1 left out.
        agreement: that a share must have.
        rounded: whether the bundle is in int8 already.

    Returns:
        One sentence; None where a share below `LEAST_WORTH` keeps them, or none was measured there.
    """
    low = [share for share in kept if share < LEAST_WORTH]
    if not low or any(kept[share] >= agreement for share in low):
        return None
    rounding = "" if rounded else ", or use int8"
    return (
        f"on these {texts} texts no {knob} that was measured, up to {max(low):g}, keeps {100 * agreement:g} % of the "
        f"exact answers: teach the checkpoint with `attenuator adapt --keep`, unless it is taught already{rounding}"
    )


def cannot_pay(calibration: Calibration, knob: str) -> str | None:
    """As `warning`, a whole sentence, from a calibration, by its `default_agreement` or else `AGREEMENT`.

    A share counts as what it kept at its best: with any other knobs, at any length. Lengths at which rounding alone
    keeps too few answers say nothing of the knob.

    Args:
        calibration: of a bundle.
        knob: the share of tokens, by name; where the bundle has none, nothing is said.
    """
    agreement = calibration.default_agreement or AGREEMENT
    exact = calibration.settings[0]
    lengths = [index for index, row in enumerate(exact.agreement) if row.value >= agreement]
    kept: dict[float, float] = {}
    for setting in calibration.settings[1:]:
        share = setting.knobs.get(knob)
        if share is not None and share != exact.knobs[knob] and lengths:
            best = max(setting.agreement[index].value for index in lengths)
            kept[share] = max(best, kept.get(share, 0.0))
    texts = sum(exact.agreement[index].trials for index in lengths)
    advice = warning(knob, texts, kept, agreement, rounded=calibration.reference is not None)
    return advice and f"{advice[0].upper()}{advice[1:]}."
