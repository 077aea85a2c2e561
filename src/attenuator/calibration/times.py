"""Predicted times of texts, by those of a calibration: between the lengths and settings that were timed, and beyond.

A row, one text on its way through the model, has two times: that of a run of its own, and what it adds to a batch that
runs anyway.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attenuator.calibration.schema import Latency

SIZE_BASE = 4
OUTLIER, POLISH_ROUNDS = 1.5, 10

PredictCost = Callable[[int, Mapping[str, float]], float]


@dataclass(frozen=True, eq=False)
class RowTime:
    """Time of a row as predicted beforehand; rows of one length and setting share it.

    Attributes:
        alone_s: of a run of its own.
        added_s: what it adds to a batch, above 0 and at most `alone_s`.
    """

    alone_s: float
    added_s: float

    @cached_property
    def size(self) -> int:
        """Its size class, by the time of a run of its own."""
        return round(math.log(self.alone_s, SIZE_BASE))


class LatencyTable:
    """The times of a calibration, for the device and the number of threads that it was timed with.

    A time that was taken while the machine did something else stands out. Times are compared with the predicted cost,
    times a factor of the length, times one of the setting, fitted by medians (Tukey's median polish, 1977), and kept
    within a factor of `OUTLIER` of the fit.

    Attributes:
        noise: mean factor between the times and the fit, 1 or more.
    """

    def __init__(self, measured: Latency, predict_cost: PredictCost) -> None:
        """Takes the times.

        Args:
            measured: at least one speed.
            predict_cost: of the model; what was not measured is scaled by it.
        """
        self._tokens = measured.tokens
        self._log_tokens = np.log(measured.tokens)
        self._log_shares = np.log(np.minimum(1.0, measured.batch_share))
        self._predict_cost = predict_cost
        costs = [[predict_cost(length, speed.knobs) for length in measured.tokens] for speed in measured.speeds]
        times = np.log([speed.seconds for speed in measured.speeds])
        residuals = _unexplained(times - np.log(costs))
        self.noise = float(np.exp(np.mean(np.abs(residuals))))
        times -= residuals - np.clip(residuals, -math.log(OUTLIER), math.log(OUTLIER))
        self._log_seconds = times
        self._log_costs = np.log(costs)
        self._rows = {frozenset(speed.knobs.items()): row for row, speed in enumerate(measured.speeds)}

    def row_times(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        """Times of rows of these lengths at one setting; lengths beyond those that were timed are scaled by cost."""
        log_lengths = np.log(tokens)
        row = self._rows.get(frozenset(knobs.items()))
        if row is None:
            timed = np.clip(tokens, self._tokens[0], self._tokens[-1]).tolist()
            alone_s = np.exp([self._between(length, knobs) for length in timed])
        else:
            alone_s = np.exp(np.interp(log_lengths, self._log_tokens, self._log_seconds[row]))
        shares = np.exp(np.interp(log_lengths, self._log_tokens, self._log_shares))
        for index, length in enumerate(tokens):
            if length > self._tokens[-1]:
                alone_s[index] *= self._predict_cost(length, knobs) / self._predict_cost(self._tokens[-1], knobs)
        return [RowTime(float(alone), float(alone * share)) for alone, share in zip(alone_s, shares, strict=True)]

    def _between(self, length: int, knobs: Mapping[str, float]) -> float:
        """Logarithm of the seconds at a setting that was not timed.

        It lies between those of the settings whose costs at this length are next to its own, above and below; beyond
        all of them it is that of the nearest, scaled by cost.
        """
        cost = math.log(self._predict_cost(length, knobs))
        costs, seconds = (
            np.array([np.interp(math.log(length), self._log_tokens, row) for row in rows])
            for rows in (self._log_costs, self._log_seconds)
        )
        order = np.argsort(costs, kind="stable")
        inside = min(max(cost, costs.min()), costs.max())
        return float(np.interp(inside, costs[order], seconds[order]) + cost - inside)


def _unexplained(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What is left of a table once a term of each row and one of each column are taken off, fitted by medians.

    Args:
        values: float64 `[rows, columns]`.
    """
    residuals = values.copy()
    for _ in range(POLISH_ROUNDS):
        residuals -= np.median(residuals, axis=1, keepdims=True)
        residuals -= np.median(residuals, axis=0, keepdims=True)
    return residuals
