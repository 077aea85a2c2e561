"""Under which terms a request is answered: which settings it may have, what it costs, when it would be done."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attenuator.api import Options
from attenuator.ops.knobs import DEFAULT_SEED, Knobs, KnobValue
from attenuator.runtime import Model, Row
from attenuator.runtime.explaining import Runner, RunOutcome, cost_of_rows
from attenuator.runtime.sampling import DRAWS, draw_seeds, draws_for
from attenuator.serve.admission import BILLION, check_cost, cost_of
from attenuator.serve.engine import Engine
from attenuator.serve.floors import Floors
from attenuator.serve.goals import Forecast, Parts
from attenuator.serve.jobs import Flow
from attenuator.serve.keys import ApiKey


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one request.

    What explains its answers counts: the draws for their standard errors (`runtime.sampling`) are further rows of the
    same job. Where it escalates, they run at the end, and each step has to find room (`runner`).

    Attributes:
        engine: which runs it.
        model: which answers.
        options: of the request.
        tokens: length of each input.
        key: its API key; None where there are no keys.
        flow: whose it is.
        max_cost: billions of multiply-adds for the whole request; None has no limit.
        started_s: clock (`time.perf_counter`) when it began.
        seed: of its rows.
        usual_seed: whether that is the service's own, whose draws do not count in the limit on cost.
    """

    engine: Engine
    model: Model
    options: Options
    tokens: Sequence[int]
    key: ApiKey | None
    flow: Flow
    max_cost: float | None
    started_s: float
    seed: int = DEFAULT_SEED
    usual_seed: bool = True

    def permits(self, knobs: Knobs) -> bool:
        """Whether the request may have a setting: API keys have ceilings, the service a limit on cost."""
        if self.max_cost is not None:
            cost = cost_of(self.model, self.tokens, knobs) + self._extra_cost(knobs) / BILLION
            if cost > self.max_cost:
                return False
        return self.key is None or self.key.permits(knobs)

    def check_cost(self, knobs: Knobs) -> None:
        """Refuses the request where its predicted cost at a setting is too high.

        Raises:
            InvalidRequest: as `admission.check_cost`.
        """
        check_cost(self.model, self.tokens, knobs, self.max_cost, self._extra_cost, self._most_extra_cost)

    def forecast(self, knobs: Knobs) -> Forecast:
        """When the request would be done at a setting."""
        draws, seeds = self._draws(knobs), self._seeds(knobs)
        return self.engine.predictor.forecast(self.model, self.tokens, knobs, self.flow, draws, seeds)

    def runner(self, asked: Knobs, floors: Floors) -> Runner:
        """What it takes to answer it.

        Args:
            asked: the knobs before a brownout lowered them.
            floors: how far they may fall.
        """
        while_waiting: Floors = {} if self.options.explain else floors
        counted = sum(self.tokens)  # of the key's, when they were tokenized

        async def run(rows: list[Row]) -> RunOutcome:
            nonlocal counted
            tokens = sum(len(row.token_ids) for row in rows)
            if self.key is not None:
                self.key.spend(tokens - counted)
            counted = 0
            job = await self.engine.run(self.model, rows, asked, self.flow, while_waiting)
            results = [result for result in job.results if result is not None]
            return RunOutcome(job.rows, results, 0.0 if job.started_s is None else job.started_s - job.submitted_s)

        return Runner(run, self._has_room, self.permits)

    def _has_room(self, rows: Sequence[Row], spent: float) -> bool:
        """Whether the limit on cost and the deadline leave room for further rows."""
        seeds = {(row.seed, id(row.knobs)): (row.seed, row.knobs) for row in rows}.values()
        if self.max_cost is not None:
            drawing = 0.0 if self.usual_seed else sum(self.model.drawn(knobs).work for _, knobs in seeds)
            if (spent + cost_of_rows(self.model, rows) + drawing) / BILLION > self.max_cost:
                return False
        if self.options.timeout_ms is None:
            return True
        parts = [([len(row.token_ids)], row.knobs) for row in rows]
        (tokens, knobs), *others = parts
        forecast = self.engine.predictor.forecast(self.model, tokens, knobs, self.flow, others, seeds)
        return time.perf_counter() + forecast.total_s <= self.started_s + self.options.timeout_ms / 1000

    def _draws(self, knobs: Knobs) -> Parts:
        """The draws that run with the inputs at a setting."""
        explained = self.options.explain and not self.options.escalate
        if not explained:
            return []
        parts: dict[tuple[tuple[str, KnobValue], ...], list[int]] = {}
        for length, count in Counter(self.tokens).items():
            draws = draws_for(self.model.manifest, self.model.knobs, knobs, length)
            if draws is not None:
                parts.setdefault(tuple(draws.knobs.items()), []).extend([length] * count * DRAWS)
        return [(lengths, dict(setting)) for setting, lengths in parts.items()]

    def _seeds(self, knobs: Knobs) -> list[tuple[int, Knobs]]:
        """The seeds of the answers and of their draws at a setting, each with the setting that it is used at."""
        seeds: list[tuple[int, Knobs]] = [(self.seed, knobs)]
        for _, setting in self._draws(knobs):
            seeds += [(seed, setting) for seed in draw_seeds(self.seed)]
        return seeds

    def _extra_cost(self, knobs: Knobs) -> float:
        """Predicted cost of what runs beside the inputs at a setting, in multiply-adds."""
        parts = self._draws(knobs)
        return sum(self.model.total_cost(lengths, setting) for lengths, setting in parts) + self._seed_cost(knobs)

    def _most_extra_cost(self, knobs: Knobs) -> float:
        """What that is at most: a draw with a fourth of the samples costs less than one at the answer's own setting.

        Draws of few samples are of the second kind, those of many of the first. So the cost itself falls where a knob
        passes from few to many.
        """
        if not self._draws(knobs):
            return self._seed_cost(knobs)
        seeds = 0.0 if self.usual_seed else (1 + DRAWS) * self.model.drawn(knobs).work
        return DRAWS * self.model.total_cost(self.tokens, knobs) + seeds

    def _seed_cost(self, knobs: Knobs) -> float:
        """Of what is drawn for seeds other than the service's own, be it still kept from a request before or not.

        Whether a request is within the limit must not depend on the requests before it.
        """
        return 0.0 if self.usual_seed else sum(self.model.drawn(setting).work for _, setting in self._seeds(knobs))
