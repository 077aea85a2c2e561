"""Predicted times of rows: measured or modelled beforehand, corrected by the batches that run.

*Beforehand* (`LatencyModel`). Where the bundle's calibration was timed on this device with as many threads, its times,
between which lengths are interpolated; else the predicted cost over the speed of the warm-up.

*Correction.* After each batch the logarithm of measured over predicted time moves two terms a little: one for the
model, which follows what slows all of it (other processes, a lower clock), and one for the size of the rows, powers of
four of their seconds, which follows where the prediction itself is wrong for short or long ones. Sizes that have not
run yet take the model's term alone. One batch counts as off by `MAX_STEP` at most and the terms are bounded, so that a
process that was stopped for a minute does not spoil the prediction. Errors are measured against the prediction at the
end of the batch, not that at its arrival: a long queue would otherwise teach the same error many times over.

*Two lanes* (`Contention`). A batch that runs beside one of the other lane takes `factor` times as long for that time.
The factor begins at the ratio of the threads of both runs to the cores, and then follows the batches that ran beside
another: their time, less what sharing is thought to cost, is compared with the prediction. What is left over is what
the latency model learns. How long a lane will be busy is what waits there now, and beyond that, as more will come, the
share of the last seconds in which it was busy.

*New seeds* (`KnownSeeds`). Hash planes and random directions are drawn once for a seed and kept in caches of the
process, least recently used first out. A text of a few tokens with a new seed may take many times what it takes with a
known one, so the time of drawing is predicted apart (`ops.cost.Drawn`). What the caches hold is followed on the safe
side: all models share the room of one cache, and what two of them share counts twice.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from attenuator.calibration.times import LatencyTable, PredictCost, RowTime
from attenuator.ops.cost import KEPT_BYTES, NOTHING_DRAWN, Drawn
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model, Row
from attenuator.serve.scheduling.requests import LANES, Lane

RUN_OVERHEAD_S = 2e-4
MODEL_RATE, SIZE_RATE, SPREAD_RATE = 0.1, 0.025, 0.05
MAX_STEP = math.log(4)  # of one batch's error
MODEL_BOUND, SIZE_BOUND = math.log(32), math.log(4)
FIRST_SPREAD = 0.2
MAX_REMEMBERED = 16_384  # times of lengths at settings: predicting one takes 20 us
STEPS_PER_OCTAVE, FEW_ROWS = 8, 8
MOST_CONTENTION, CONTENTION_RATE = 4.0, 0.05
MEMORY_S = 5.0
OTHER: dict[Lane, Lane] = {"light": "heavy", "heavy": "light"}


class LatencyModel:
    """Predicts how long a model's rows take here, and learns from the batches that run.

    Attributes:
        batches: that it has learned from.
        spread: moving mean of the error's size, as the logarithm of measured over predicted.
    """

    def __init__(
        self, predict_cost: PredictCost, *, cost_per_s: float = 5e9, table: LatencyTable | None = None
    ) -> None:
        """Starts without a correction, from multiply-adds by length and knobs, or from measured times if there are."""
        self.batches = 0
        self.spread = FIRST_SPREAD
        self._predict_cost = predict_cost
        self._cost_per_s = cost_per_s
        self._table = table
        self._model_term = 0.0
        self._size_terms: dict[int, float] = {}
        self._beforehand: dict[tuple[frozenset[tuple[str, float]], int], RowTime] = {}

    def row_times(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        """Times of rows of these lengths at one setting, as predicted beforehand."""
        setting = frozenset(knobs.items())
        remembered = self._beforehand
        if len(remembered) > MAX_REMEMBERED:
            remembered.clear()
        missing = [length for length in dict.fromkeys(tokens) if (setting, length) not in remembered]
        if missing:
            times = self._predicted(missing, knobs)
            remembered.update({(setting, length): time for length, time in zip(missing, times, strict=True)})
        return [remembered[setting, length] for length in tokens]

    def with_draws(self, row_time: RowTime, missing: float) -> RowTime:
        """A row's time with that of drawing so many multiply-adds' worth first."""
        drawing_s = missing / self._cost_per_s
        return RowTime(row_time.alone_s + drawing_s, row_time.added_s + drawing_s) if missing else row_time

    def _predicted(self, tokens: Sequence[int], knobs: Mapping[str, float]) -> list[RowTime]:
        if self._table is not None:
            return self._table.row_times(tokens, knobs)
        added_s = [self._predict_cost(length, knobs) / self._cost_per_s for length in tokens]
        return [RowTime(RUN_OVERHEAD_S + seconds, seconds) for seconds in added_s]

    def correction(self, time: RowTime) -> float:
        """Measured over predicted time, as learned, for rows of this size."""
        return math.exp(self._model_term + self._size_terms.get(time.size, 0.0))

    def added_s(self, times: Sequence[RowTime]) -> list[float]:
        """Predicted seconds that each row adds to a batch."""
        seconds: dict[RowTime, float] = {}
        for time in times:
            if time not in seconds:
                seconds[time] = time.added_s * self.correction(time)
        return [seconds[time] for time in times] if len(times) > 1 else list(seconds.values())

    def batch_s(self, times: Mapping[RowTime, int]) -> float:
        """Predicted seconds of rows that run together, at least one, by how many there are of each time."""
        start_s = added_s = 0.0
        for time, count in times.items():
            correction = self.correction(time)
            start_s = max(start_s, (time.alone_s - time.added_s) * correction)
            added_s += count * time.added_s * correction
        return start_s + added_s

    def upper_s(self, seconds: float) -> float:
        """A predicted time with a usual error on top."""
        return seconds * math.exp(self.spread)

    def learn(self, times: Sequence[RowTime], seconds: float) -> float:
        """Learns from a batch, by its rows' times and the seconds that it took; gives those that were predicted."""
        counts = Counter(times)
        predicted_s = self.batch_s(counts)
        error = _step(seconds, predicted_s)
        self.batches += 1
        self.spread += SPREAD_RATE * (abs(error) - self.spread)
        added_s: dict[int, float] = {}
        for time, count in counts.items():
            added_s[time.size] = added_s.get(time.size, 0.0) + count * time.added_s * self.correction(time)
        whole_s = sum(added_s.values())
        rate = max(MODEL_RATE, 1 / (self.batches + 1))  # the first batches say more than what was predicted beforehand
        self._model_term = min(max(self._model_term + rate * error, -MODEL_BOUND), MODEL_BOUND)
        for size, part_s in added_s.items():
            term = self._size_terms.get(size, 0.0) + SIZE_RATE * error * part_s / whole_s
            self._size_terms[size] = min(max(term, -SIZE_BOUND), SIZE_BOUND)
        return predicted_s


def _step(seconds: float, predicted_s: float) -> float:
    """The logarithm of measured over predicted time, as far as one batch may count."""
    return min(max(math.log(max(seconds, 1e-6) / predicted_s), -MAX_STEP), MAX_STEP)


def coarse_lengths(tokens: Sequence[int]) -> dict[int, int]:
    """Lengths and how many there are of each; many are rounded up, by a tenth at most, so that few are predicted."""
    if len(tokens) <= FEW_ROWS:
        counts: dict[int, int] = {}  # a Counter takes several times as long to make
        for length in tokens:
            counts[length] = counts.get(length, 0) + 1
        return counts
    steps = Counter(math.ceil(STEPS_PER_OCTAVE * math.log2(length)) for length in tokens)
    return {math.floor(2 ** (step / STEPS_PER_OCTAVE)): count for step, count in steps.items()}


@dataclass(slots=True)
class BusyTime:
    """When a lane is busy.

    Attributes:
        busy: whether it runs a batch.
        total_s: seconds in which it has been busy.
        share: of the last seconds in which it was busy; the older, the less they count.
        until_s: clock up to which these are counted.
    """

    busy: bool = False
    total_s: float = 0.0
    share: float = 0.0
    until_s: float = 0.0

    def at(self, now_s: float) -> "BusyTime":
        """Counts up to now, and gives itself."""
        passed_s = now_s - self.until_s
        fading = math.exp(-passed_s / MEMORY_S)
        self.share *= fading
        if self.busy:
            self.total_s += passed_s
            self.share += 1 - fading
        self.until_s = now_s
        return self


class Contention:
    """What lanes cost each other.

    Attributes:
        factor: by which a batch is slower while the other lane runs one.
    """

    def __init__(self, threads: int, cores: int) -> None:
        """Starts with what the threads of one run and the cores of the process suggest."""
        self.factor = min(2.0, max(1.0, 2 * threads / cores))
        self._busy = {lane: BusyTime() for lane in LANES}

    def begin(self, lane: Lane, now_s: float) -> float:
        """A lane begins a batch; gives a mark for `beside_s`."""
        self._busy[lane].at(now_s).busy = True
        return self._busy[OTHER[lane]].at(now_s).total_s

    def end(self, lane: Lane, now_s: float) -> None:
        """A lane ends its batch."""
        self._busy[lane].at(now_s).busy = False

    def beside_s(self, lane: Lane, mark: float, now_s: float) -> float:
        """Seconds since a lane's batch began in which the other lane ran one."""
        return self._busy[OTHER[lane]].at(now_s).total_s - mark

    def alone_s(self, seconds: float, beside_s: float) -> float:
        """What a time would have been without the other lane."""
        return seconds - beside_s * (1 - 1 / self.factor)

    def shared_s(self, lane: Lane, seconds: float, other_s: float, now_s: float) -> float:
        """What work takes beside that of the other lane, which has `other_s` seconds waiting and running now."""
        later_s = self._busy[OTHER[lane]].at(now_s).share * max(0.0, seconds - other_s)
        return seconds + (self.factor - 1) * min(seconds, other_s + later_s)

    def learn(self, seconds: float, beside_s: float, predicted_s: float) -> None:
        """Learns from a batch that took some seconds, of them some beside the other lane; predicted without that."""
        error = _step(self.alone_s(seconds, beside_s), predicted_s)
        step = CONTENTION_RATE * min(1.0, beside_s / seconds) * error
        self.factor = min(max(self.factor * math.exp(step), 1.0), MOST_CONTENTION)


class KnownSeeds:
    """The seeds of one process, by what was drawn of them."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, int], Drawn] = OrderedDict()  # by revision; least recently used first
        self._bytes = 0

    def missing(self, model: Model, seed: int, knobs: Knobs) -> float:
        """Multiply-adds of what a run with a seed would have to draw first; 0 where all of it is kept."""
        drawn = model.drawn(knobs)
        kept = self._kept.get((model.manifest.revision, seed), NOTHING_DRAWN)
        return drawn.work if drawn.work > kept.work else 0.0

    def used(self, model: Model, seed: int, knobs: Knobs) -> None:
        """A run used a seed, so what it takes is kept now."""
        drawn, key = model.drawn(knobs), (model.manifest.revision, seed)
        if not drawn.work:
            return
        kept = self._kept.pop(key, NOTHING_DRAWN)
        if kept.work < drawn.work:
            self._bytes += drawn.bytes - kept.bytes
            kept = drawn
        self._kept[key] = kept
        while self._bytes > self._most_bytes and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].bytes


class Learned:
    """What the batches of one service have taught, for whoever predicts.

    Attributes:
        latencies: how long rows take, by model, also of those that are replaced and still answer requests.
        contention: what lanes cost each other.
        seeds: whose draws are kept.
    """

    def __init__(self, threads: int, cores: int) -> None:
        """Knows no model yet."""
        self.latencies: WeakKeyDictionary[Model, LatencyModel] = WeakKeyDictionary()
        self.contention = Contention(threads, cores)
        self.seeds = KnownSeeds()

    def times(self, model: Model, rows: Sequence[Row]) -> list[RowTime]:
        """What each row takes, as predicted beforehand; the first of a new seed draws what it takes."""
        latency, first, times = self.latencies[model], rows[0], list[RowTime]()
        alike: list[int] = []  # lengths of rows at one setting, which are predicted together
        drawn: dict[tuple[int, int], tuple[int, float]] = {}
        for place, row in enumerate(rows):
            if row.knobs is not first.knobs and row.knobs != first.knobs:
                times += latency.row_times(alike, first.knobs)
                alike, first = [], row
            alike.append(len(row.token_ids))
            if (row.seed, id(first.knobs)) not in drawn:
                drawn[row.seed, id(first.knobs)] = place, self.seeds.missing(model, row.seed, row.knobs)
        times += latency.row_times(alike, first.knobs)
        for place, missing in drawn.values():
            if missing:
                times[place] = latency.with_draws(times[place], missing)
        return times

    def learn(self, model: Model, times: Sequence[RowTime], seconds: float, beside_s: float) -> float:
        """Learns from a batch that took some seconds, of them some beside the other lane; gives those predicted."""
        if not beside_s:
            return self.latencies[model].learn(times, seconds)
        alone_s = self.contention.alone_s(seconds, beside_s)
        predicted_s = self.latencies[model].learn(times, alone_s)
        self.contention.learn(seconds, beside_s, predicted_s)
        return predicted_s * seconds / max(alone_s, 1e-6)
