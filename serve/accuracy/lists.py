"""The steps of a list for a reranker: what scores all documents, and how many of the best are scored again, exactly.

| what the request sets | first step, over all documents | second step, exact, over the best |
| --- | --- | --- |
| nothing of what follows | as for every request | none |
| `rescore` | the caller's knobs, else the first model's default | so many |
| `max_cost`, `max_latency_ms` beside knobs, or with a cascade whose lists were not measured | the same | as many as \
the rest of the budget holds |
| `max_cost`, `max_latency_ms` | the setting that keeps the top most often with as many as the budget then holds, of \
equal ones the cheaper; where nothing is in time the fastest | the same |
| `min_agreement` | with the second step the cheapest whose bound reaches it | as many as that takes |
| `min_agreement` and a budget | the same within the budget, else refused | the same |

* *Exact* is the last model at the exact value of every knob. Where that fits for all documents it runs alone.
* Of one model whose first step is exact already, no second one runs.
* `max_cost` is kept by predicted cost alone, so that the same request always has the same answer. `max_latency_ms`
  is looked at again once the first step has run.
* `escalate`, and `min_agreement` or `max_latency_ms` of a model whose lists were not measured, mean what they mean for
  texts: one step.

`steps_of` refuses what contradicts itself, `choose` is the choice among measured settings.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from attenuator.api import Goals
from attenuator.calibration import Calibration, how_to_calibrate
from attenuator.calibration.lists import ListCalibration
from attenuator.calibration.records import Proportion
from attenuator.calibration.schema import shown as shown_knobs
from attenuator.errors import GoalOutOfReach, InvalidRequest, NotCalibrated
from attenuator.ops.knobs import Knobs, shown
from attenuator.runtime import Model
from attenuator.runtime.request import check_goals
from attenuator.serve.accuracy.goals import AGREEMENT, LATENCY, too_slow

COST: Final = "max_cost"
RESCORE: Final = "rescore"
CASCADE: Final = "cascade"

NO_LIMIT = math.inf


@dataclass(frozen=True, slots=True)
class ListFields:
    """The fields of a request about the steps of its list, checked one by one; None where they are not set.

    Attributes:
        rescore: documents to score again.
        max_cost: billions of multiply-adds for both steps.
        last: the second model of a cascade.
        top_n: how many of the best are asked for.
    """

    rescore: int | None = None
    max_cost: float | None = None
    last: Model | None = None
    top_n: int | None = None

    def stated(self) -> list[str]:
        """Names of those that ask for steps."""
        values = {RESCORE: self.rescore, COST: self.max_cost, CASCADE: self.last}
        return [name for name, value in values.items() if value is not None]


@dataclass(frozen=True, slots=True)
class Steps:
    """What a request that may run in two steps says of them, checked against its models.

    Attributes:
        last: the model of the second step.
        cascade: whether that is another one than the first step's.
        rescore: documents to score again; None where a budget or a goal says how many.
        max_cost: billions of multiply-adds for both steps; None has no limit.
        top_n: how many of the best are asked for; None where all are.
        measured: what first steps keep of the order of lists, of these two models; None where that is unknown.
        chooses: whether the setting of the first step is chosen by it.
        whole: whether it was decided that the last model scores all documents.
    """

    last: Model
    cascade: bool = False
    rescore: int | None = None
    max_cost: float | None = None
    top_n: int | None = None
    measured: ListCalibration | None = None
    chooses: bool = False
    whole: bool = False

    def expected(self, knobs: Knobs, rescored: int, documents: int) -> float | None:
        """Share of measured lists whose top was the exact one; None where that was not measured."""
        if self.measured is None:
            return None
        kept = self.measured.same_top(knobs, rescored, documents, self.top(documents))
        return None if kept is None else kept.value

    def top(self, documents: int) -> int:
        """The documents whose order counts: those that are asked for; of all, as many as were measured at most."""
        if self.top_n:
            return min(self.top_n, documents)
        return min(documents, self.measured.tops[-1] if self.measured else documents)


@dataclass(frozen=True, slots=True)
class Second:
    """The second step, as decided before the first has run.

    Attributes:
        most: documents that are scored again at most: as many of the best as the budget and the deadline then hold.
        least: how many have to be, or the answer would not keep its goal.
        whole: whether the last model scores all documents and the first step is left out.
    """

    most: int
    least: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class First:
    """A setting of the first step, over all documents.

    Attributes:
        knobs: a value for every knob.
        cost: predicted, in billions of multiply-adds.
        queue_s: predicted seconds until it would run.
        run_s: those that it would then run.
        keeps: how often the top is the exact one, by how many documents are scored again; None where unknown.
    """

    knobs: Knobs
    cost: float
    queue_s: float
    run_s: float
    keeps: Callable[[int], Proportion | None]


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact scores of all documents.

    Attributes:
        cost: predicted, in billions of multiply-adds.
        queue_s: predicted seconds until they would run.
        run_s: those that they would then run.
        most_costs: those of the dearest documents together, by how many they are: from none to all.
        permitted: whether the caller may have them.
        bound: of their agreement with the reference, which rounding lowers.
    """

    cost: float
    queue_s: float
    run_s: float
    most_costs: Sequence[float]
    permitted: bool = True
    bound: float = 1.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What a choice has to keep.

    Attributes:
        cost: billions of multiply-adds.
        elapsed_s: since the request began.
        min_agreement: share of lists whose top is the exact one; None where that is not asked for.
        max_latency_ms: since the request began; None without a limit.
    """

    cost: float = NO_LIMIT
    elapsed_s: float = 0.0
    min_agreement: float | None = None
    max_latency_ms: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return NO_LIMIT if self.max_latency_ms is None else self.max_latency_ms / 1000 - self.elapsed_s


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting of the first step and how many documents are scored again, with what both take.

    Attributes:
        knobs: of the first step; None where exact scores of all documents take its place.
        rescored: documents of the second step.
        cost: predicted, in billions of multiply-adds.
        queue_s: predicted seconds of waiting.
        run_s: predicted seconds of running.
        share: of measured lists whose top is kept, or its lower bound where a goal is compared with it.
    """

    knobs: Knobs | None
    rescored: int
    cost: float
    queue_s: float
    run_s: float
    share: float

    @property
    def total_s(self) -> float:
        """Until both steps are done."""
        return self.queue_s + self.run_s

    def __str__(self) -> str:
        """In words."""
        if self.knobs is None:
            return "exact scores of all documents"
        again = f", {self.rescored} documents scored again" if self.rescored else ""
        return (shown_knobs(self.knobs) or "the first model") + again


def choose(firsts: Sequence[First], exact: Exact, documents: int, shares: Sequence[float], budget: Budget) -> Choice:
    """Chooses the first step and how many documents the second scores again, by the last three rows of the table.

    Args:
        firsts: permitted settings whose lists were measured, the exact one of the same model aside.
        exact: the exact scores of all documents.
        documents: of the list.
        shares: of a list that were scored again where it was measured, ascending.
        budget: what has to be kept.

    Returns:
        The choice. Without `min_agreement` it may exceed the budget: where nothing is in time it is the fastest, and
        where nothing is cheap enough the cheapest, which the caller refuses.

    Raises:
        GoalOutOfReach: nothing reaches `min_agreement`, or not within the budget, or nothing is permitted.
        Overloaded: it is reached in time once less is waiting.
    """
    whole = Choice(None, documents, exact.cost, exact.queue_s, exact.run_s, exact.bound)
    if budget.min_agreement is not None:
        least = [_least(first, exact, documents, shares, budget.min_agreement) for first in firsts]
        reaching = [each for each in least if each is not None]
        reaching += [whole] if exact.permitted and exact.bound >= budget.min_agreement else []
        return _cheapest(reaching, budget, budget.min_agreement)
    choices = [_most(first, exact, documents, budget) for first in firsts] + [whole] * exact.permitted
    if not choices:
        name = COST if budget.max_latency_ms is None else LATENCY
        raise GoalOutOfReach(
            f"{name} takes a setting whose lists were measured, and the ceilings of the API key permit none",
            param=name,
            allowed=f"no {name}, or permitted knobs beside it",
        )
    affordable = [each for each in choices if each.cost <= budget.cost]
    in_time = [each for each in affordable if each.total_s <= budget.left_s]
    if in_time:
        return max(in_time, key=lambda each: (each.knobs is None, each.share, -each.cost))
    return min(affordable, key=lambda each: each.total_s) if affordable else min(choices, key=lambda each: each.cost)


def _most(first: First, exact: Exact, documents: int, budget: Budget) -> Choice:
    """A setting with as many documents scored again as the budget then holds."""
    rest_s = budget.left_s - first.queue_s - first.run_s - exact.queue_s
    held = min(documents, (budget.cost - first.cost) * documents / exact.cost, rest_s * documents / exact.run_s)
    count = max(0, math.floor(held)) if exact.permitted else 0
    kept = first.keeps(count)
    # The rest of the budget is filled, so that of two settings the one that leaves more of it counts as the cheaper.
    return Choice(first.knobs, count, first.cost, first.queue_s, first.run_s, 0.0 if kept is None else kept.value)


def _least(first: First, exact: Exact, documents: int, shares: Sequence[float], min_agreement: float) -> Choice | None:
    """A setting with as few documents scored again as reach a goal; None where it does not."""
    for share in shares:
        count = next(
            n for n in range(max(0, math.ceil(share * documents) - 1), documents + 1) if n >= share * documents
        )
        kept = first.keeps(count)
        if kept is not None and kept.bound >= min_agreement and (exact.permitted or not count):
            part = count / documents
            queue_s = first.queue_s + (exact.queue_s if count else 0.0)
            cost, run_s = first.cost + exact.most_costs[count], first.run_s + exact.run_s * part
            return Choice(first.knobs, count, cost, queue_s, run_s, kept.bound)
    return None


def _cheapest(reaching: Sequence[Choice], budget: Budget, min_agreement: float) -> Choice:
    """The cheapest of those that reach a goal which is within the budget."""
    if not reaching:
        raise GoalOutOfReach(
            f"{AGREEMENT} {min_agreement:g} is above what is shown to be kept of the order of lists here, at the "
            "settings that the ceilings of the API key and the bundle's rounding leave",
            param=AGREEMENT,
            allowed="a lower one",
        )
    affordable = [each for each in reaching if each.cost <= budget.cost]
    if not affordable:
        least = min(reaching, key=lambda each: each.cost)
        raise GoalOutOfReach(
            f"{AGREEMENT} {min_agreement:g} takes {least.cost:.3g} billion multiply-adds here ({least}), and at most "
            f"{budget.cost:g} are allowed: raise {COST} or lower {AGREEMENT}",
            param=COST,
            allowed=f"{least.cost:.3g} or more with {AGREEMENT} {min_agreement:g}",
        )
    in_time = [each for each in affordable if each.total_s <= budget.left_s]
    if in_time:
        return min(in_time, key=lambda each: each.cost)
    assert budget.max_latency_ms is not None
    fastest = min(affordable, key=lambda each: each.run_s)
    raise too_slow(
        str(fastest), (fastest.queue_s, fastest.run_s), min_agreement, budget.max_latency_ms, budget.elapsed_s
    )


def measured_lists(calibration: Calibration | None, last: Model, *, cascade: bool) -> ListCalibration | None:
    """What a calibration says of lists that a last model scores again; None where it says nothing of it."""
    lists = None if calibration is None else calibration.lists
    if lists is None or lists.reference != (last.manifest.revision if cascade else None):
        return None
    return lists


def steps_of(
    model: Model, of_list: ListFields, goals: Goals, requested: Collection[str], *, escalate: bool
) -> Steps | None:
    """Checks what a request says of the steps of its list.

    Args:
        model: of the first step.
        of_list: the fields about it.
        goals: that it states.
        requested: knobs that the caller sets.
        escalate: whether answers that are not sure enough run again.

    Returns:
        The steps; None where the request has one, as every other.

    Raises:
        InvalidRequest: fields contradict each other.
        NotCalibrated: nothing says which setting a budget or a goal should choose.
    """
    stated, cascade = of_list.stated(), of_list.last is not None
    if escalate:
        if stated:
            raise _beside(stated[0], "escalate", "which runs single documents again: send one of them")
        return None
    told = [*goals, *([COST] if of_list.max_cost is not None else [])]
    if of_list.rescore is not None and told:
        raise _beside(RESCORE, told[0], "which says itself how many documents are scored again: send one of them")
    if stated == [CASCADE] and not goals:
        allowed = f"{CASCADE} beside {RESCORE}, {COST}, {LATENCY} or {AGREEMENT}"
        raise InvalidRequest(
            f"{CASCADE} does not say how many documents its last model scores: send {RESCORE}, {COST}, {LATENCY} or "
            f"{AGREEMENT} too",
            param=CASCADE,
            allowed=allowed,
        )
    last = of_list.last or model
    measured = measured_lists(model.calibration, last, cascade=cascade)
    if AGREEMENT in goals and (measured is not None or stated):
        if requested:
            check_goals(model.manifest, model.calibration, goals, list(requested))
        if measured is None:
            raise _not_measured(AGREEMENT, model, last)
    elif COST in told and measured is None and not requested and not cascade:
        raise _not_measured(COST, model, last)
    elif not stated and (AGREEMENT in goals or not goals or (measured is None and not requested)):
        return None
    chooses = measured is not None and bool(told) and not requested
    return Steps(last, cascade, of_list.rescore, of_list.max_cost, of_list.top_n or None, measured, chooses)


def above_budget(cost: float, max_cost: float, knobs: Knobs) -> InvalidRequest:
    """That a budget does not even hold the first step at some knobs, whose cost is predicted."""
    unit = 10.0 ** (math.floor(math.log10(cost)) - 2)
    least = f"{math.ceil(cost / unit) * unit:.3g}"
    at = f" at {shown_knobs(knobs)}" if knobs else ""
    return InvalidRequest(
        f"{COST} is {shown(max_cost)}, must be at least {least} here, the predicted billions of multiply-adds of "
        f"scoring all documents once{at}",
        param=COST,
        allowed=f"{least} or more",
    )


def _beside(name: str, other: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{name} stands beside {other}, {why}", param=name, allowed=f"no {name} beside {other}")


def _not_measured(name: str, model: Model, last: Model) -> NotCalibrated:
    of_both = "" if last is model else f" before '{last.manifest.name}'"
    reference = "" if last is model else f" and the bundle of '{last.manifest.name}' as --reference"
    knobs = "" if name == AGREEMENT else ", or set knobs"
    return NotCalibrated(
        f"{name} needs a calibration on lists, and model '{model.manifest.name}'{of_both} has none: "
        f"{how_to_calibrate(model.manifest)} with lists as --data{reference}{knobs}",
        param=name,
        allowed="a model calibrated on lists",
    )
