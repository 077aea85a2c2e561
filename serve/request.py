"""One request between its tokenized inputs and its results: what it asks of the engine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attenuator.ops.knobs import Knobs
from attenuator.runtime import Row
from attenuator.runtime.explaining import Runner, RunOutcome
from attenuator.serve.accuracy.cost import Work, seeds_of
from attenuator.serve.accuracy.plan import Limits, Load, Plan
from attenuator.serve.engine import Engine
from attenuator.serve.scheduling.requests import Flow, Forecast


@dataclass(frozen=True, slots=True)
class RequestRun:
    """A request that is about to run.

    Attributes:
        engine: which runs it.
        work: what it makes run.
        limits: those of others on its accuracy.
        flow: whose it is.
        started_s: clock (`time.perf_counter`) when it began.
        timeout_ms: its deadline; None without one.
        spend: counts tokens in its API key's rate.
    """

    engine: Engine
    work: Work
    limits: Limits
    flow: Flow
    started_s: float
    timeout_ms: float | None = None
    spend: Callable[[int], None] = lambda tokens: None

    def load(self) -> Load:
        """What a plan depends on, at this moment."""
        return Load(self.work, time.perf_counter() - self.started_s, self.forecast, self._level)

    def forecast(self, knobs: Knobs) -> Forecast:
        """When it would be done at a setting."""
        work = self.work
        draws, seeds = work.draws(knobs), work.seeds(knobs)
        return self.engine.predictor.forecast(work.model, work.tokens, knobs, self.flow, draws, seeds)

    def runner(self, plan: Plan) -> Runner:
        """What it takes to answer it."""
        counted = sum(self.work.tokens)  # in the key's rate, when they were tokenized

        async def run(rows: list[Row]) -> RunOutcome:
            nonlocal counted
            self.spend(sum(len(row.token_ids) for row in rows) - counted)
            counted = 0
            job = await self.engine.run(self.work.model, rows, plan.unlowered, self.flow)
            results = [result for result in job.results if result is not None]
            return RunOutcome(job.rows, results, 0.0 if job.started_s is None else job.started_s - job.submitted_s)

        return Runner(run, self._has_room, lambda knobs: self.limits.permit(self.work, knobs))

    def _level(self, knobs: Knobs) -> float:
        return self.engine.level(self.work.model, self.work.tokens, knobs, self.flow)

    def _has_room(self, rows: Sequence[Row], spent: float) -> bool:
        """Whether the limit on cost and the deadline leave room for further rows."""
        if not self.work.fits_besides(rows, spent, self.limits.max_cost):
            return False
        if self.timeout_ms is None:
            return True
        parts = [([len(row.token_ids)], row.knobs) for row in rows]
        (tokens, knobs), *others = parts
        forecast = self.engine.predictor.forecast(self.work.model, tokens, knobs, self.flow, others, seeds_of(rows))
        return time.perf_counter() + forecast.total_s <= self.started_s + self.timeout_ms / 1000
