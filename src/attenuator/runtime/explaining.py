"""Answers that say how sure they are (`explain`), and that are given again at surer settings (`escalate`).

*Explain.* The draws for the standard error (`sampling`) run together with the answers. The probability comes from the
calibration, without a run.

*Escalate.* Each text has a setting of its own from the second step on: one whose answer is not sure enough runs again
at the cheapest setting that should make it so, by its margins (`Judge.surer`). A step for which there is no room, by
the deadline, the limit on cost or the queue, is replaced by a cheaper one, and else left out: an answer that is not
sure enough says so by its probability. An answer has the bits that its text gets alone at that setting.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from attenuator.api import Options
from attenuator.calibration import how_to_calibrate
from attenuator.errors import InvalidRequest, NotCalibrated, Overloaded
from attenuator.ops.knobs import Knobs, KnobValue
from attenuator.runtime.batch import Row, RowResult
from attenuator.runtime.certainty import Judge
from attenuator.runtime.model import Model
from attenuator.runtime.sampling import DRAWS, draws_for, standard_error

T = TypeVar("T")

EXPLAIN, ESCALATE = "explain", "escalate"
FEW_TEXTS = 8  # whose probabilities take less than 1 ms on the event loop


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What a run of rows gave.

    Attributes:
        results: one a row.
        queue_s: time until the first of them ran.
    """

    results: Sequence[RowResult]
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs what answers a request, where there is room for it.

    Attributes:
        run: runs rows together; raises Overloaded where there is no room for them.
        has_room: whether rows may run besides what ran: rows, and its predicted cost in multiply-adds.
        permits: whether a setting may be used.
    """

    run: Callable[[list[Row]], Awaitable[RunOutcome]]
    has_room: Callable[[Sequence[Row], float], bool] = lambda rows, spent: True
    permits: Callable[[Knobs], bool] = lambda knobs: True


def check_certainty(model: Model, options: Options) -> None:
    """Refuses `explain` and `escalate` where they have no meaning.

    Raises:
        InvalidRequest: `escalate` without the probability to reach, or beside a goal of time.
        NotCalibrated: the calibration does not say how sure answers are.
    """
    if options.escalate and options.min_agreement is None:
        allowed = "true beside min_agreement"
        raise InvalidRequest(
            f"{ESCALATE} is true, but min_agreement, the probability to reach, is missing: send both",
            param=ESCALATE,
            allowed=allowed,
        )
    if options.escalate and options.max_latency_ms is not None:
        raise InvalidRequest(
            f"max_latency_ms stands beside {ESCALATE}, which ends at a deadline: send timeout_ms in its place",
            param="max_latency_ms",
            allowed=f"no max_latency_ms beside {ESCALATE}",
        )
    name = ESCALATE if options.escalate else EXPLAIN
    if not (options.escalate or options.explain) or not model.manifest.knobs:
        return
    if judge_of(model).certainty is None:
        old = "an old calibration" if model.calibration is not None else "none"
        raise NotCalibrated(
            f"{name} needs a calibration that says how sure answers are, and model '{model.manifest.name}' has {old}: "
            f"{how_to_calibrate(model.manifest)}, or leave {name} out",
            param=name,
            allowed="a model whose calibration says how sure answers are",
        )


def by_setting(rows: Sequence[Row]) -> list[tuple[list[int], Knobs]]:
    """Rows by their knobs: lengths in tokens, and the knobs that they have."""
    lengths: dict[tuple[tuple[str, KnobValue], ...], list[int]] = {}
    for row in rows:
        lengths.setdefault(tuple(row.knobs.items()), []).append(len(row.token_ids))
    return [(each, dict(knobs)) for knobs, each in lengths.items()]


def cost_of_rows(model: Model, rows: Sequence[Row]) -> float:
    """Predicted work of rows, in multiply-adds."""
    return sum(model.total_cost(lengths, knobs) for lengths, knobs in by_setting(rows))


def judge_of(model: Model) -> Judge:
    """Says how sure a model's answers are."""
    return Judge(model.manifest, model.knobs, model.calibration)


@dataclass(slots=True)
class Answered:
    """The answers to a request's texts.

    Attributes:
        rows: each text, with the knobs of its answer.
        results: one a text.
        queue_s: of all runs together.
        steps: settings that ran, one after the other; None without `escalate`.
        relative_cost: predicted cost of all that ran, as a share of the exact setting's; None without either.
        probabilities: that each answer agrees with the exact one; None where that is unknown. Empty without either.
        standard_errors: of each score; None where the deadline left no time. Empty without `explain`.
    """

    rows: Sequence[Row]
    results: Sequence[RowResult]
    queue_s: float
    steps: int | None = None
    relative_cost: float | None = None
    probabilities: list[float | None] = field(default_factory=list)
    standard_errors: list[float | None] = field(default_factory=list)

    def setting(self, model: Model) -> tuple[Knobs, float | None]:
        """The knobs of the costliest answer, and the agreement that is expected at them.

        That is None where it is unknown, or where the answers have different knobs.
        """
        tokens = max([len(row.token_ids) for row in self.rows])
        knobs, alike = self.rows[0].knobs, True
        if self.steps:
            knobs = max((row.knobs for row in self.rows), key=partial(model.predict_cost, tokens))
            alike = all(row.knobs == knobs for row in self.rows)
        return knobs, model.calibration.expected_agreement(knobs, tokens) if model.calibration and alike else None

    def fields(self) -> Iterator[dict[str, Any]]:
        """What `explain` and `escalate` add to each prediction of an answer, in its order."""
        unknown: list[float | None] = [None] * len(self.rows)
        for row, probability, error in zip(
            self.rows, self.probabilities or unknown, self.standard_errors or unknown, strict=True
        ):
            own = dict(row.knobs) if self.steps else None
            yield {"standard_error": error, "agreement_probability": probability, "knobs": own}


async def answer(
    model: Model, rows: list[Row], runner: Runner, *, explain: bool = False, reach: float | None = None
) -> Answered:
    """Answers a request.

    Args:
        model: which answers.
        rows: its texts, with the knobs to begin with.
        runner: runs the rows.
        explain: whether the answers say their standard errors and probabilities.
        reach: probability to agree that each answer has to reach by escalation; None without escalation.

    Raises:
        Overloaded: there is no room for the first run.
        EngineError: a row failed.
    """
    if not explain and reach is None:
        ran = await runner.run(rows)
        return Answered(rows, ran.results, ran.queue_s)
    explanation = _Explanation(model, rows, runner, explain=explain, reach=reach)
    if reach is not None:
        await explanation.escalate(reach)
    else:
        await explanation.run_with_draws()
    return explanation.answered()


class _Explanation:
    """One request on its way."""

    def __init__(self, model: Model, rows: list[Row], runner: Runner, *, explain: bool, reach: float | None) -> None:
        self._model = model
        self._judge = judge_of(model)
        self._explain = explain
        self._reach = reach
        self._runner = runner
        self._rows = list(rows)
        self._results: list[RowResult] = []
        self._probabilities: list[float | None] = [None] * len(rows)
        self._errors: list[float | None] = []
        self._steps = 0
        self._queue_s = 0.0
        self._cost = 0.0

    def answered(self) -> Answered:
        """What became of it."""
        exact = self._model.knobs.exact()
        whole = self._model.total_cost([len(row.token_ids) for row in self._rows], exact)
        steps = None if self._reach is None else self._steps
        share = float(f"{self._cost / whole:.4g}")
        return Answered(self._rows, self._results, self._queue_s, steps, share, self._probabilities, self._errors)

    async def run_with_draws(self) -> None:
        """Runs the texts with the draws for their standard errors."""
        extra = [draw for row in self._rows for draw in self._draws(row)]
        results = await self._run([*self._rows, *extra])
        self._results, places = results[: len(self._rows)], range(len(self._rows))
        self._errors = [0.0] * len(self._rows)
        self._take_errors(places, results[len(self._rows) :])
        await self._judge_all(places)

    async def escalate(self, reach: float) -> None:
        """Runs the texts, and those that are not sure enough again; then the draws, if they are asked for."""
        pending = list(range(len(self._rows)))
        self._results = await self._run(self._rows)
        await self._judge_all(pending)
        while again := await self._next([place for place in pending if not self._sure(place, reach)], reach):
            try:
                results = await self._run(list(again.values()))
            except Overloaded:
                break
            for place, row, result in zip(again, again.values(), results, strict=True):
                self._rows[place], self._results[place] = row, result
            pending = list(again)
            await self._judge_all(pending)
        if self._explain:
            await self._draw_afterwards()

    def _sure(self, place: int, reach: float) -> bool:
        probability = self._probabilities[place]
        return probability is not None and probability >= reach

    async def _run(self, rows: list[Row]) -> list[RowResult]:
        ran = await self._runner.run(rows)
        self._steps += 1
        self._queue_s += ran.queue_s
        self._cost += cost_of_rows(self._model, rows)
        return list(ran.results)

    async def _judge_all(self, places: Sequence[int]) -> None:
        def judge() -> list[float | None]:
            return [
                self._judge.probability(
                    self._results[place].logits, self._rows[place].knobs, len(self._rows[place].token_ids)
                )
                for place in places
            ]

        for place, value in zip(places, await _off_loop(judge, len(places)), strict=True):
            self._probabilities[place] = value

    async def _next(self, unsure: Sequence[int], reach: float) -> dict[int, Row]:
        """The rows of the next step, by the place of their text; empty where nothing more can be done."""

        def choices() -> dict[int, list[dict[str, KnobValue]]]:
            return {
                place: self._judge.surer(
                    self._results[place].logits,
                    self._rows[place].knobs,
                    len(self._rows[place].token_ids),
                    reach,
                    self._runner.permits,
                )
                for place in unsure
            }

        settings = {place: each for place, each in (await _off_loop(choices, len(unsure))).items() if each}
        for cheaper in range(max((len(each) for each in settings.values()), default=0)):
            rows = {
                place: replace(self._rows[place], knobs=each[min(cheaper, len(each) - 1)])
                for place, each in settings.items()
            }
            if self._fits(list(rows.values())):
                return rows
        return {}

    def _fits(self, rows: Sequence[Row]) -> bool:
        """Whether there is room for rows, and for their draws where they are due."""
        draws = [draw for row in rows for draw in self._draws(row)] if self._explain else []
        return self._runner.has_room([*rows, *draws], self._cost)

    def _draws(self, row: Row) -> list[Row]:
        draws = draws_for(self._model.manifest, self._model.knobs, row.knobs, len(row.token_ids))
        return [] if draws is None else draws.rows(row)

    async def _draw_afterwards(self) -> None:
        """Runs the draws of the answers that escalation has ended at, as far as there is room."""
        steps, drawn = self._steps, {place: self._draws(row) for place, row in enumerate(self._rows)}
        self._errors = [None if rows else 0.0 for rows in drawn.values()]
        places = [place for place, rows in drawn.items() if rows]
        rows = [row for place in places for row in drawn[place]]
        if rows and self._runner.has_room(rows, self._cost):
            with contextlib.suppress(Overloaded):
                self._take_errors(places, await self._run(rows))
        self._steps = steps  # no further setting

    def _take_errors(self, places: Sequence[int], drawn: Sequence[RowResult]) -> None:
        """Takes the standard errors of some texts from their draws, which follow each other."""
        manifest, table = self._model.manifest, self._model.knobs
        for number, place in enumerate(places):
            row = self._rows[place]
            draws = draws_for(manifest, table, row.knobs, len(row.token_ids))
            if draws is not None:
                logits = [result.logits for result in drawn[number * DRAWS : (number + 1) * DRAWS]]
                self._errors[place] = standard_error(manifest.task, self._results[place].logits, logits, draws.share)


async def _off_loop(work: Callable[[], T], texts: int) -> T:
    """Does something for many texts in a thread, so that the event loop goes on."""
    return work() if texts <= FEW_TEXTS else await asyncio.to_thread(work)
