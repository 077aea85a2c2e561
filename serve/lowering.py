"""Lowers requests under load: as they enter the queue, and those that wait as their turn comes.

A request enters with the knobs of the level at that time. The level may have risen since: others came, or what ran took
longer than was predicted. So the rows that a batch is formed of are looked at again, and a request of which no row has
run yet is lowered to where a newcomer would be, never below its floors. It is never raised: the room that it takes in
the queue and the forecasts of others count on what it was lowered to.

All rows of an answer have the same knobs, so a request that has begun is left alone. So is one with `explain`: the
draws for its standard errors belong to its setting.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from attenuator.runtime import Model
from attenuator.serve.brownout import Brownout, knobs_at, lowered_share
from attenuator.serve.choosing import Chosen
from attenuator.serve.floors import Floors
from attenuator.serve.jobs import ANYONE, Flow, Job, Lower
from attenuator.serve.lanes import Lanes
from attenuator.serve.predicting import Predictor
from attenuator.serve.room import Room

log = logging.getLogger(__name__)
FLOOR_LENGTHS = (64, 512, 4096)  # tokens at which the log says what floors win


class Lowering:
    """Lowers the requests of one service."""

    def __init__(self, brownout: Brownout, predictor: Predictor, lanes: Lanes, room: Room) -> None:
        """Takes what it depends on.

        Args:
            brownout: how far knobs are lowered at a time.
            predictor: what rows are predicted to take.
            lanes: say how long a newcomer would wait.
            room: says how full the queue is.
        """
        self._brownout = brownout
        self._predictor = predictor
        self._lanes = lanes
        self._room = room

    def entering(
        self, model: Model, chosen: Chosen, floors: Floors, tokens: Sequence[int], flow: Flow = ANYONE
    ) -> Chosen:
        """Lowers a request's knobs as far as the load demands and its floors allow.

        Args:
            model: the model.
            chosen: the knobs that it would run with.
            floors: how far they may fall; empty leaves them as they are.
            tokens: of its inputs.
            flow: whose it is.
        """
        if not floors:
            return chosen
        level = self._level(flow, time.monotonic())
        if self._room.full(self._predictor.demand(model, tokens, chosen.knobs, chosen.knobs), flow.key):
            level = 1.0
        knobs = knobs_at(model, chosen.knobs, floors, level, tokens)
        return chosen if knobs == chosen.knobs else Chosen(knobs, "brownout")

    def say_what_floors_win(self, model: Model) -> None:
        """Logs how many times as much a model does at the operator's floors as without a brownout.

        The policy lowers requests that run at the defaults; those that ask for exact answers may name floors as well.
        """
        own, defaults = self._brownout.policy(model), model.knobs.defaults()
        if not own:
            return
        gains = []
        for tokens in sorted({min(each, model.manifest.max_tokens) for each in FLOOR_LENGTHS}):
            exactly, usual, lowered = (
                self._predictor.seconds(model, [tokens], each)[0]
                for each in (model.knobs.exact(), defaults, knobs_at(model, defaults, own, 1.0, [tokens]))
            )
            gains.append(f"{usual / lowered:.1f} ({exactly / lowered:.1f}) times at {tokens} tokens")
        log.info(
            "a brownout lets %s do as much as at its defaults (at the exact values): %s (predicted); more load than "
            "that is refused",
            model.manifest.name,
            ", ".join(gains),
        )

    def waiting(self, now_s: float) -> Lower:
        """What lowers those that wait, for the forming of one batch.

        Args:
            now_s: the clock.
        """
        levels: dict[Flow, float] = {}
        seen: set[Job] = set()
        return partial(self._lower, now_s, levels, seen)

    def _lower(self, now_s: float, levels: dict[Flow, float], seen: set[Job], job: Job) -> Sequence[float] | None:
        """Lowers a request that waits, once for each batch; each level is observed once."""
        if not job.floors or job.started_s is not None or job in seen:
            return None
        seen.add(job)
        if job.flow not in levels:
            levels[job.flow] = self._level(job.flow, now_s)
        model, knobs = job.model, job.rows[0].knobs
        asked = knobs if job.asked is None else job.asked
        tokens = [len(row.token_ids) for row in job.rows]
        lower = knobs_at(model, asked, job.floors, levels[job.flow], tokens)
        longest = max(tokens)
        if model.predict_cost(longest, lower) >= model.predict_cost(longest, knobs):
            return None
        job.rows = [replace(row, knobs=lower) for row in job.rows]
        job.times = self._predictor.times(model, job.rows)
        job.room_share = lowered_share(model, tokens, lower, asked)
        return self._predictor.added_s(model, job.times)

    def _level(self, flow: Flow, now_s: float) -> float:
        wait_s = self._lanes.wait_s(now_s, flow) if flow.priority == "interactive" else 0.0
        return self._brownout.level(flow).observe(wait_s, self._room.fullness(flow.key), now_s)
