"""Predictions for a request, of room and of time, and its refusal where there is no room."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attenuator.calibration.times import RowTime
from attenuator.errors import Overloaded
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model
from attenuator.serve.scheduling.lanes import Lanes
from attenuator.serve.scheduling.queue import Queue
from attenuator.serve.scheduling.requests import ANYONE, LANES, Flow, Forecast, Lane, demand_of, lane_of
from attenuator.serve.scheduling.times import LatencyModel, Learned, coarse_lengths

Parts = Sequence[tuple[Sequence[int], Knobs]]  # lengths of the rows that run at a setting
Seeds = Iterable[tuple[int, Knobs]]
FREE_QUEUE_SHARE = 0.5


class Admission:
    """Predicts by what batches took, by what runs and waits and by known seeds, and refuses what finds no room."""

    def __init__(self, queue: Queue, lanes: Lanes, learned: Learned) -> None:
        self._queue = queue
        self._lanes = lanes
        self._latencies = learned.latencies
        self._contention = learned.contention
        self._seeds = learned.seeds

    def seconds(self, model: Model, tokens: Sequence[int], knobs: Knobs) -> list[float]:
        """What rows of these lengths add to a batch at one setting, in seconds, with a seed whose draws are kept."""
        latency = self._latencies[model]
        return latency.added_s(latency.row_times(tokens, knobs))

    def exact_s(self, model: Model, tokens: int) -> float:
        """What a row takes alone at the knobs' exact values, in seconds."""
        latency = self._latencies[model]
        return latency.batch_s(Counter(latency.row_times([tokens], model.knobs.exact())))

    def lane(self, model: Model, tokens: int, knobs: Knobs) -> Lane:
        """Where a row would run."""
        [seconds] = self.seconds(model, [tokens], knobs)
        return lane_of(seconds)

    def demand(self, model: Model, tokens: Sequence[int], knobs: Knobs, room_share: float = 1.0) -> dict[Lane, int]:
        """Room by lane that a request takes; `room_share` is what one of its tokens counts."""
        return demand_of(tokens, self.seconds(model, tokens, knobs), room_share)

    def forecast(
        self,
        model: Model,
        tokens: Sequence[int],
        knobs: Knobs,
        flow: Flow = ANYONE,
        others: Parts = (),
        seeds: Seeds = (),
    ) -> Forecast:
        """When a request that comes now would be done, with `others`, further rows by setting.

        The `seeds` are those of all rows, each with a setting that it is used at.
        """
        latency = self._latencies[model]
        missing = sum(self._seeds.missing(model, *seed) for seed in seeds)
        by_lane: dict[Lane, dict[RowTime, int]] = {}
        for lengths, setting in ((coarse_lengths(some), each) for some, each in ((tokens, knobs), *others)):
            for row_time, count in zip(latency.row_times(list(lengths), setting), lengths.values(), strict=True):
                first, missing = latency.with_draws(row_time, missing), 0.0
                for each, number in ((first, 1), (row_time, count - 1)):
                    if number:
                        times = by_lane.setdefault(lane_of(latency.added_s([each])[0]), {})
                        times[each] = times.get(each, 0) + number
        forecasts = [self._forecast(lane, latency, times, flow) for lane, times in by_lane.items()]
        return max(forecasts, key=lambda each: each.total_s)

    def wait_s(self, now_s: float, flow: Flow = ANYONE) -> float:
        """How long a row of a flow that arrives now would wait, in the lane where that is longer.

        Both lanes count, since they share the cores. Rows behind a newcomer in fair order do not.
        Where predictions are too short, what others of the flow have waited already counts in their place.
        """
        queues = self._queue.lanes
        predicted_s = max(
            self._shared_s(lane, self._lanes.remaining_s(lane, now_s) + queues[lane].wait_s(flow), now_s)
            for lane in LANES
        )
        return max(predicted_s, *(queue.waited_s(now_s, flow) for queue in queues.values()))

    def check_tokens(self, demand: Mapping[Lane, int], key: str) -> None:
        """Refuses with Overloaded tokens for which a lane has no room; the key is empty where there are not several."""
        lane = self._queue.full(demand, key)
        if lane:
            queue = self._queue.lanes[lane]
            waiting = queue.backlog.tokens + queue.reserved.total()
            own = queue.backlog_of(key).tokens + queue.reserved[key] if key else 0
            among = f", {own} of the API key '{key}' among them" if own else ""
            raise self.overloaded(f"{waiting} tokens are waiting{among}", lane)

    def overloaded(self, what: str, lane: Lane) -> Overloaded:
        """The refusal of a request for which a lane has no room, and what there is in its place, in words."""
        # After this time part of what takes room is done, and a new request finds some.
        backlog, now_s = self._queue.lanes[lane].backlog, time.monotonic()
        taken = backlog.room / backlog.tokens if backlog.tokens else 1.0
        wait_s = max(1.0, self._shared_s(lane, self._alone_s(lane, now_s), now_s) * taken * FREE_QUEUE_SHARE)
        return Overloaded(f"the service is overloaded: {what}; try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def _forecast(self, lane: Lane, latency: LatencyModel, times: Mapping[RowTime, int], flow: Flow) -> Forecast:
        """When a request that comes now would be done with its rows in a lane, by how many there are of each time."""
        added_s = latency.added_s(list(times))
        own_s = sum(seconds * count for seconds, count in zip(added_s, times.values(), strict=True))
        if lane == "light":
            run_s = latency.batch_s(times)
        else:
            run_s = sum(count * latency.batch_s({each: 1}) for each, count in times.items())
        now_s = time.monotonic()
        queue_s = self._lanes.remaining_s(lane, now_s) + self._queue.lanes[lane].ahead_s(own_s, min(added_s), flow)
        sharing_s = self._shared_s(lane, queue_s + run_s, now_s) - (queue_s + run_s)
        return Forecast(queue_s + sharing_s, latency.upper_s(run_s))

    def _alone_s(self, lane: Lane, now_s: float) -> float:
        """Predicted time of what runs and waits in a lane, without the other one."""
        return self._queue.lanes[lane].backlog.seconds + self._lanes.remaining_s(lane, now_s)

    def _shared_s(self, lane: Lane, seconds: float, now_s: float) -> float:
        """What work in a lane takes beside what runs and waits in the other one."""
        other_s = sum(self._alone_s(other, now_s) for other in LANES if other != lane)
        return self._contention.shared_s(lane, seconds, other_s, now_s)
