"""How long rows will take: what was measured or predicted beforehand, corrected by the batches that run.

*Beforehand.* Where the bundle's calibration was timed on this device with as many threads, its times, between which
lengths are interpolated; else the predicted cost over the speed of the warm-up.

*Correction.* After each batch the logarithm of measured over predicted time moves two terms a little: one for the
model, which follows what slows all of it (other processes, a lower clock), and one for the size of the rows, powers of
four of their seconds, which follows where the prediction itself is wrong for short or long ones. Sizes that have not
run yet take the model's term alone. One batch counts as off by `MAX_STEP` at most and the terms are bounded, so that a
process that was stopped for a minute does not spoil the prediction. Errors are measured against the prediction at the
end of the batch, not that at its arrival: a long queue would otherwise teach the same error many times over.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from attenuator.calibration.times import LatencyTable, PredictCost, RowTime, setting_key

RUN_OVERHEAD_S = 2e-4
MODEL_RATE, SIZE_RATE, SPREAD_RATE = 0.1, 0.025, 0.05
MAX_STEP = math.log(4)  # of one batch's error
MODEL_BOUND, SIZE_BOUND = math.log(32), math.log(4)
FIRST_SPREAD = 0.2
MAX_REMEMBERED = 16_384  # times of lengths at settings: predicting one takes 20 us
STEPS_PER_OCTAVE, FEW_ROWS = 8, 8


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
        setting = setting_key(knobs)
        remembered = self._beforehand
        if len(remembered) > MAX_REMEMBERED:
            remembered.clear()
        missing = [length for length in dict.fromkeys(tokens) if (setting, length) not in remembered]
        if missing:
            times = self._predicted(missing, knobs)
            remembered.update({(setting, length): time for length, time in zip(missing, times, strict=True)})
        return [remembered[setting, length] for length in tokens]

    def drawing_s(self, work: float) -> float:
        """Predicted seconds of drawing what a new seed takes, from its multiply-adds."""
        return work / self._cost_per_s

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


def coarse_lengths(tokens: Sequence[int]) -> dict[int, int]:
    """Lengths and how many there are of each; many are rounded up, by a tenth at most, so that few are predicted."""
    if len(tokens) <= FEW_ROWS:
        counts: dict[int, int] = {}  # a Counter takes several times as long to make
        for length in tokens:
            counts[length] = counts.get(length, 0) + 1
        return counts
    steps = Counter(math.ceil(STEPS_PER_OCTAVE * math.log2(length)) for length in tokens)
    return {math.floor(2 ** (step / STEPS_PER_OCTAVE)): count for step, count in steps.items()}


def _bounded(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)
