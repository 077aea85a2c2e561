"""How long rows will take: what was measured or predicted beforehand, corrected by the batches that run.

*Beforehand.* Where the bundle's calibration was timed on this device with as many threads, its times, between which
lengths are interpolated; else the predicted cost over the speed of the warm-up. A row has two times: that of a run of
its own, and what it adds to a batch that runs anyway.

*Correction.* After each batch the logarithm of measured over predicted time moves two terms a little: one for the
model, which follows what slows all of it (other processes, a lower clock), and one for the size of the rows, powers of
four of their seconds, which follows where the prediction itself is wrong for short or long ones. Sizes that have not
run yet take the model's term alone. One batch counts as off by `MAX_STEP` at most and the terms are bounded, so that a
process that was stopped for a minute does not spoil the prediction. Errors are measured against the prediction at the
end of the batch, not that at its arrival: a long queue would otherwise teach the same error many times over.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attenuator.calibration.schema import Latency

RUN_OVERHEAD_S = 2e-4
SIZE_BASE = 4
MODEL_RATE, SIZE_RATE, SPREAD_RATE = 0.1, 0.025, 0.05
MAX_STEP = math.log(4)  # of one batch's error
MODEL_BOUND, SIZE_BOUND = math.log(32), math.log(4)
FIRST_SPREAD = 0.2
MAX_REMEMBERED = 16_384  # times of lengths at settings: predicting one takes 20 us
STEPS_PER_OCTAVE, FEW_ROWS = 8, 8
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
        self._rows = {_key(speed.knobs): row for row, speed in enumerate(measured.speeds)}

    def row_times(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        """Times of rows of these lengths at one setting; lengths beyond those that were timed are scaled by cost."""
        log_lengths = np.log(tokens)
        row = self._rows.get(_key(knobs))
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


class LatencyModel:
    """Predicts how long a model's rows take here, and learns from the batches that run.

    Attributes:
        batches: that it has learned from.
        predicted_s: what it predicted for them, just before it learned from each.
        measured_s: what they took.
        spread: moving mean of the error's size, as the logarithm of measured over predicted.
    """

    def __init__(
        self, predict_cost: PredictCost, *, cost_per_s: float = 5e9, table: LatencyTable | None = None
    ) -> None:
        """Starts without a correction.

        Args:
            predict_cost: of the model, multiply-adds by length and knobs.
            cost_per_s: multiply-adds per second.
            table: measured times, which go before the cost.
        """
        self.batches = 0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.spread = FIRST_SPREAD
        self._predict_cost = predict_cost
        self._cost_per_s = cost_per_s
        self._table = table
        self._model_term = 0.0
        self._size_terms: dict[int, float] = {}
        self._beforehand: dict[tuple[frozenset[tuple[str, float]], int], RowTime] = {}

    def row_times(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        """Times of rows at one setting, as predicted beforehand.

        Args:
            tokens: length of each row.
            knobs: a value for every knob.
        """
        setting = _key(knobs)
        remembered = self._beforehand
        if len(remembered) > MAX_REMEMBERED:
            remembered.clear()
        missing = [length for length in dict.fromkeys(tokens) if (setting, length) not in remembered]
        if missing:
            times = self._predicted(missing, knobs)
            remembered.update({(setting, length): time for length, time in zip(missing, times, strict=True)})
        return [remembered[setting, length] for length in tokens]

    def _predicted(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        if self._table is not None:
            return self._table.row_times(tokens, knobs)
        added_s = [self._predict_cost(length, knobs) / self._cost_per_s for length in tokens]
        return [RowTime(RUN_OVERHEAD_S + seconds, seconds) for seconds in added_s]

    def correction(self, time: RowTime) -> float:
        """Measured over predicted time, as learned, for rows of this size."""
        return math.exp(self._model_term + self._size_terms.get(time.size, 0.0))

    def added_s(self, time: RowTime) -> float:
        """Predicted seconds that a row adds to a batch."""
        return time.added_s * self.correction(time)

    def batch_s(self, times: Mapping[RowTime, int]) -> float:
        """Predicted seconds of rows that run together, at least one, by how many there are of each time."""
        corrections = {time: self.correction(time) for time in times}
        start_s = max((time.alone_s - time.added_s) * each for time, each in corrections.items())
        return start_s + sum(count * time.added_s * corrections[time] for time, count in times.items())

    def upper_s(self, seconds: float) -> float:
        """A predicted time with a usual error on top."""
        return seconds * math.exp(self.spread)

    def learn(self, times: Sequence[RowTime], seconds: float) -> float:
        """Learns from a batch.

        Args:
            times: of its rows.
            seconds: what it took.

        Returns:
            What was predicted for it, in seconds.
        """
        counts = Counter(times)
        predicted_s = self.batch_s(counts)
        added_s = {time: count * self.added_s(time) for time, count in counts.items()}
        whole_s = sum(added_s.values())
        error = min(max(math.log(max(seconds, 1e-6) / predicted_s), -MAX_STEP), MAX_STEP)
        self.batches += 1
        self.predicted_s += predicted_s
        self.measured_s += seconds
        self.spread += SPREAD_RATE * (abs(error) - self.spread)
        rate = max(MODEL_RATE, 1 / (self.batches + 1))  # the first batches say more than what was predicted beforehand
        self._model_term = _bounded(self._model_term + rate * error, MODEL_BOUND)
        for time, part_s in added_s.items():
            step = SIZE_RATE * error * part_s / whole_s
            self._size_terms[time.size] = _bounded(self._size_terms.get(time.size, 0.0) + step, SIZE_BOUND)
        return predicted_s


def _unexplained(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What is left of a table once a term of each row and one of each column are taken off, fitted by medians.

    Args:
        values: float64 `[rows, columns]`.
    """
    left = values.copy()
    for _ in range(POLISH_ROUNDS):
        left -= np.median(left, axis=1, keepdims=True)
        left -= np.median(left, axis=0, keepdims=True)
    return left


def coarse_lengths(tokens: Sequence[int]) -> dict[int, int]:
    """Lengths and how many there are of each; many are rounded up, by a tenth at most, so that few are predicted."""
    if len(tokens) <= FEW_ROWS:
        return Counter(tokens)
    steps = Counter(math.ceil(STEPS_PER_OCTAVE * math.log2(length)) for length in tokens)
    return {math.floor(2 ** (step / STEPS_PER_OCTAVE)): count for step, count in steps.items()}


def _bounded(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)


def _key(knobs: Mapping[str, float]) -> frozenset[tuple[str, float]]:
    return frozenset(knobs.items())
