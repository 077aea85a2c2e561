"""The second step of a list: the best documents of the first are scored again, exactly, as far as there is room."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attenuator.errors import GoalOutOfReach, Overloaded
from attenuator.runtime import Input, Row
from attenuator.runtime.scores import ranked
from attenuator.serve import events
from attenuator.serve.accuracy.cost import BILLION, Work
from attenuator.serve.accuracy.list_steps import COST, Second
from attenuator.serve.accuracy.plan import Asked, Plan
from attenuator.serve.api.answers import Again, Ran
from attenuator.serve.api.schema import ParsedRequest
from attenuator.serve.engine import RequestRun

LAST_SHARE = 0.05  # of the time until the deadline: the answer has to be written


async def second_step(ran: Ran, run: RequestRun, again: Work, parsed: ParsedRequest, texts: Sequence[Input]) -> Ran:
    """Scores the best of the first step again, as `scored_again` does; of that which takes too long nothing is kept.

    Past the deadline the request is refused. Where the caller left it to a budget how many are scored again, none is an
    answer too.
    """
    steps, second, left_s = parsed.asked.steps, ran.chosen.second, None
    assert steps is not None
    assert second is not None
    if run.timeout_ms is not None and steps.rescore is None and not second.least:
        left_s = run.started_s + (1 - LAST_SHARE) * run.timeout_ms / 1000 - time.perf_counter()
    try:
        async with asyncio.timeout(left_s):
            return await scored_again(ran, run, again, parsed, texts)
    except TimeoutError:
        return ran


async def scored_again(ran: Ran, run: RequestRun, again: Work, parsed: ParsedRequest, texts: Sequence[Input]) -> Ran:
    """Scores the best of the first step again, as many as there is room for.

    Args:
        ran: the first step.
        run: that ran it.
        again: all documents as the second step's work, with the lengths that are expected.
        parsed: the request.
        texts: its documents, where another model scores again.

    Returns:
        The same with the second step; without it where there is no room, or where the scores are exact already.

    Raises:
        GoalOutOfReach: the best documents are longer for the last model than was predicted, and the limit on cost does
            not hold as many as the goal takes.
        Overloaded: the queue has no room, and the request has a goal that a first step alone does not keep.
    """
    steps, second = parsed.asked.steps, ran.chosen.second
    assert steps is not None
    assert second is not None
    first, exact = ran.answered.rows, steps.last.knobs.exact()
    if not steps.cascade and first[0].knobs == exact:
        return ran
    places = ranked([float(result.logits[0]) for result in ran.answered.results])[: second.most]
    rows = [replace(first[place], knobs=exact) for place in places]
    spent = run.work.cost(first[0].knobs) * BILLION
    using = limited(run, again, parsed.asked, second)
    began_s, tokenize_s = time.perf_counter(), 0.0
    try:
        if steps.cascade:
            expected = [
                replace(row, token_ids=np.resize(row.token_ids, again.tokens[place]))
                for place, row in zip(places, rows, strict=True)
            ]
            places = places[: await held(using, second, expected, spent)]
            if not places:
                return ran
            usual = Plan(exact, ran.chosen.by, exact, {})
            items, truncate = [texts[place] for place in places], parsed.options.truncate
            encoded = await run.engine.encode(steps.last, items, usual, truncate=truncate, flow=run.flow)
            rows = [Row(item.token_ids, item.type_ids, exact, ran.seed) for item in encoded]
            tokenize_s = time.perf_counter() - began_s
        count = await held(using, second, rows, spent)
        if not count:
            return ran
        outcome = await using.run(rows[:count])
    except Overloaded:
        if second.least:
            raise
        return ran
    events.note(rescored=count)
    for tell in run.engine.listeners.answered:
        tell(steps.last, rows[:count], outcome.results, False)
    scored = Again(steps.last, places[:count], rows[:count], outcome.results, outcome.queue_s, tokenize_s)
    return replace(ran, again=scored)


def limited(run: RequestRun, again: Work, asked: Asked, second: Second) -> RequestRun:
    """The second step's run, of its work: within what is left of budget, limit and deadline."""
    limits, timeout_ms = asked.second_within(second, run.limits, run.timeout_ms)
    return replace(run, work=again, limits=limits, timeout_ms=timeout_ms, unlowered=None)


async def held(run: RequestRun, second: Second, rows: Sequence[Row], spent: float) -> int:
    """For how many of the best there is room; of rows that a goal needs all, or a refusal."""
    count, above = 0, len(rows) + 1  # there is room for the first number, and none for the second
    while above - count > 1:
        middle = (count + above) // 2
        count, above = (middle, above) if run.has_room(rows[:middle], spent) else (count, middle)
        await asyncio.sleep(0)  # a look at a thousand rows takes milliseconds
    if count < second.least:
        needs = run.work.cost_besides(rows, spent)
        raise GoalOutOfReach(
            f"the goal takes {needs:.3g} billion multiply-adds here, and at most {run.limits.max_cost:g} are allowed",
            param=COST,
            allowed=f"{needs:.3g} or more",
        )
    return count
