"""Live agreement: whether live answers still agree with the exact ones as often as calibration measured.

Plain data: no clock, no threads, no event loop.

A calibrated bundle says, for each of its settings and length buckets, a lower bound of the agreement. The newest
`WINDOW` comparisons of live texts at that setting and length give an upper bound by the same method (Clopper and
Pearson). Agreement is *low* once the upper bound lies under the calibrated lower bound: live texts then differ from
those that calibration saw by more than chance explains. It is low until the share of the window reaches the calibrated
bound again, so that it does not flap.

The window is looked at after every `STEP` comparisons. Looking often finds by chance what one look would not, so each
look asks for much confidence. Where the true agreement lies exactly at the calibrated bound, which calibration makes
improbable, 10,000 comparisons raise a false alarm in at most about 1 % of cases and 100,000 in 3 to 9 %. Where it is
what calibration saw a sample of, 100,000 do in about 2 %, most of them where the bound came out too high. An agreement
of 0.97 where the bound is 0.99 is noticed after about 550 comparisons, one of 0.9 where it is 0.95 after about 350
(medians of 1,000 simulated services).
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attenuator.calibration.proportions import upper_bound
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model
from attenuator.runtime.scores import agrees

WINDOW, STEP, FEWEST = 1000, 25, 50
CONFIDENCE = 0.9999
FEWEST_SCORES = 32  # exact scores of a regression, from which on their deviation says what agrees
ALL_LENGTHS = "all"


@dataclass(slots=True)
class Window:
    """The newest comparisons at one setting and length.

    Attributes:
        bound: lower bound of the agreement that calibration measured.
        outcomes: whether each answer agreed with the exact one.
        agreed: how many did.
        low: whether the agreement is surely below the bound.
        judged: whether there were ever enough to tell.
    """

    bound: float
    outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOW))
    agreed: int = 0
    low: bool = False
    judged: bool = False
    _since_look: int = 0

    @property
    def share(self) -> float:
        """Share that agreed."""
        return self.agreed / len(self.outcomes)

    def add(self, agreed: bool) -> bool:
        """Adds a comparison; gives whether `low` has changed."""
        if len(self.outcomes) == WINDOW:
            self.agreed -= self.outcomes[0]
        self.outcomes.append(agreed)
        self.agreed += agreed
        self._since_look += 1
        if self._since_look < STEP or len(self.outcomes) < FEWEST:
            return False
        self._since_look, self.judged, before = 0, True, self.low
        live = self.share if before else upper_bound(self.agreed, len(self.outcomes), CONFIDENCE)
        self.low = live < self.bound
        return self.low != before


class Comparison(NamedTuple):
    """Whether an answer agrees with the exact one, and the window whose `low` has changed by it, if any.

    The first is None where too few exact scores of a regression are known to tell.
    """

    agreed: bool | None
    changed: Window | None


class LiveAgreement:
    """Comparisons of one model's live answers with its exact ones.

    Attributes:
        windows: by setting and the calibration's bucket of the length, for calibrated settings only.
    """

    def __init__(self, model: Model) -> None:
        self.windows: dict[tuple[tuple[tuple[str, KnobValue], ...], int], Window] = {}
        self._calibration = model.calibration
        self._task, self._thresholds = model.manifest.task, model.manifest.thresholds
        self._scores, self._mean, self._squares = 0, 0.0, 0.0

    def compare(
        self,
        knobs: Mapping[str, KnobValue] | None,
        tokens: int,
        answer: npt.NDArray[np.float32],
        exact: npt.NDArray[np.float32],
    ) -> Comparison:
        """Compares an answer with the exact one.

        Args:
            knobs: the setting of the answer; None where the text itself decided on it, as in escalation: the bounds of
                the calibration are those of all texts, not of easy or hard ones.
            tokens: length of the text.
            answer: float32 `[num_labels]`, its logits, or `[tokens, num_labels]`.
            exact: of the same shape, those at the exact value of every knob.
        """
        deviation = self._deviation(float(exact[0])) if self._task == "regression" else None
        if self._task == "regression" and deviation is None:
            return Comparison(None, None)
        pair = (np.atleast_2d(answer), np.atleast_2d(exact))
        agreed = bool(agrees(*pair, task=self._task, thresholds=self._thresholds, deviation=deviation).all())
        window = self._window(knobs, tokens)
        changed = window is not None and window.add(agreed)
        return Comparison(agreed, window if changed else None)

    def lengths(self, tokens: int) -> str:
        """The bucket of a length as labels and log lines have it, such as `1-64`."""
        return ALL_LENGTHS if self._calibration is None else self._named(self._calibration.bucket(tokens))

    def judged(self) -> Iterator[tuple[dict[str, KnobValue], str, bool]]:
        """Setting, lengths and whether agreement is low, wherever there were enough comparisons."""
        for (knobs, bucket), window in self.windows.items():
            if window.judged:
                yield dict(knobs), self._named(bucket), window.low

    def _named(self, bucket: int) -> str:
        assert self._calibration is not None
        row = self._calibration.buckets[bucket]
        return f"{row.low}-{row.high}"

    def _window(self, knobs: Mapping[str, KnobValue] | None, tokens: int) -> Window | None:
        """The window of a calibrated setting; None for every other."""
        if self._calibration is None or knobs is None:
            return None
        bucket = self._calibration.bucket(tokens)
        place = (tuple(sorted(knobs.items())), bucket)
        if place not in self.windows:
            setting = self._calibration.setting(knobs)
            if setting is None:
                return None
            self.windows[place] = Window(setting.agreement[bucket].bound)
        return self.windows[place]

    def _deviation(self, score: float) -> float | None:
        """Standard deviation of the exact scores so far (Welford 1962); None while there are few."""
        self._scores += 1
        step = score - self._mean
        self._mean += step / self._scores
        self._squares += step * (score - self._mean)
        return None if self._scores < FEWEST_SCORES else float(np.sqrt(self._squares / self._scores))
