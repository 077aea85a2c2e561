"""What rows are predicted to take here, what room they take in the queue, and when they would be done."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from attenuator.calibration.times import RowTime
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model, Row
from attenuator.serve.brownout import lowered_share
from attenuator.serve.goals import Forecast, Parts
from attenuator.serve.jobs import ANYONE, Flow, Lane, demand_of, lane_of
from attenuator.serve.lanes import Lanes
from attenuator.serve.latency import LatencyModel, coarse_lengths
from attenuator.serve.seeds import KnownSeeds

Seeds = Iterable[tuple[int, Knobs]]


class Predictor:
    """The predictions of one service, by what its models' batches have taken."""

    def __init__(self, latencies: Mapping[Model, LatencyModel], lanes: Lanes, seeds: KnownSeeds) -> None:
        """Takes what it depends on.

        Args:
            latencies: how long each model's rows take.
            lanes: what runs and waits.
            seeds: whose draws need not be made.
        """
        self._latencies = latencies
        self._lanes = lanes
        self._seeds = seeds

    def times(self, model: Model, rows: Sequence[Row]) -> list[RowTime]:
        """What each row takes, as predicted beforehand; the first of a new seed draws what it takes."""
        latency, drawn = self._latencies[model], set[tuple[int, int]]()
        times: list[RowTime] = []
        for setting, group in groupby(rows, key=lambda row: row.knobs):
            same = list(group)
            for row, time in zip(same, latency.row_times([len(row.token_ids) for row in same], setting), strict=True):
                draw = (row.seed, id(setting))
                missing = 0.0 if draw in drawn else self._seeds.missing(model, row.seed, setting)
                drawn.add(draw)
                times.append(self._with_draws(latency, time, missing))
        return times

    def added_s(self, model: Model, times: Sequence[RowTime]) -> list[float]:
        """What each row adds to a batch, in seconds."""
        latency = self._latencies[model]
        return [latency.added_s(each) for each in times]

    def seconds(self, model: Model, tokens: Sequence[int], knobs: Knobs) -> list[float]:
        """What rows of these lengths add to a batch at one setting, in seconds, with a seed whose draws are kept."""
        return self.added_s(model, self._latencies[model].row_times(tokens, knobs))

    def exact_s(self, model: Model, tokens: int) -> float:
        """What a row takes alone at the knobs' exact values, in seconds."""
        latency = self._latencies[model]
        return latency.batch_s(Counter(latency.row_times([tokens], model.knobs.exact())))

    def lane(self, model: Model, tokens: int, knobs: Knobs) -> Lane:
        """Where a row would run."""
        [seconds] = self.seconds(model, [tokens], knobs)
        return lane_of(seconds)

    def demand(self, model: Model, tokens: Sequence[int], knobs: Knobs, asked: Knobs) -> dict[Lane, int]:
        """Room by lane that a request takes with some knobs in place of those asked for."""
        share = lowered_share(model, tokens, knobs, asked)
        return demand_of(tokens, self.seconds(model, tokens, knobs), share)

    def forecast(
        self,
        model: Model,
        tokens: Sequence[int],
        knobs: Knobs,
        flow: Flow = ANYONE,
        others: Parts = (),
        seeds: Seeds = (),
    ) -> Forecast:
        """When a request that comes now would be done.

        Args:
            model: the model.
            tokens: length of each input.
            knobs: a value for every knob.
            flow: whose it is.
            others: further rows, by setting.
            seeds: of all rows, each with a setting that it is used at.
        """
        latency = self._latencies[model]
        missing = sum(self._seeds.missing(model, *seed) for seed in seeds)
        by_lane: dict[Lane, dict[RowTime, int]] = {}
        for lengths, setting in ((coarse_lengths(some), each) for some, each in ((tokens, knobs), *others)):
            for row_time, count in zip(latency.row_times(list(lengths), setting), lengths.values(), strict=True):
                first, missing = self._with_draws(latency, row_time, missing), 0.0
                for each, number in ((first, 1), (row_time, count - 1)):
                    if number:
                        times = by_lane.setdefault(lane_of(latency.added_s(each)), {})
                        times[each] = times.get(each, 0) + number
        forecasts = [self._lanes.forecast(lane, latency, times, flow) for lane, times in by_lane.items()]
        return max(forecasts, key=lambda each: each.total_s)

    @staticmethod
    def _with_draws(latency: LatencyModel, time: RowTime, missing: float) -> RowTime:
        """A row's time with that of drawing so many multiply-adds' worth first."""
        if not missing:
            return time
        drawing_s = latency.drawing_s(missing)
        return RowTime(time.alone_s + drawing_s, time.added_s + drawing_s)
