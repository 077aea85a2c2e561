"""The choice of a list's steps among measured settings: a function of numbers, see the table of `list_steps`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attenuator.calibration.records import Proportion
from attenuator.calibration.schema import shown
from attenuator.errors import GoalOutOfReach
from attenuator.ops.knobs import Knobs
from attenuator.serve.accuracy.goals import AGREEMENT, LATENCY, too_slow
from attenuator.serve.accuracy.list_steps import COST, rounded_up

NO_LIMIT = math.inf


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
        max_cost: billions of multiply-adds that the caller allows; None without a limit.
        cost_limit: those that the service allows.
        elapsed_s: since the request began.
        min_agreement: share of lists whose top is the exact one; None where that is not asked for.
        max_latency_ms: since the request began; None without a limit.
    """

    max_cost: float | None = None
    cost_limit: float | None = None
    elapsed_s: float = 0.0
    min_agreement: float | None = None
    max_latency_ms: float | None = None

    @property
    def cost(self) -> float:
        """Billions of multiply-adds that both allow."""
        return min(NO_LIMIT if each is None else each for each in (self.max_cost, self.cost_limit))

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
        most_cost: that of the dearest documents that the first step may leave to the second.
    """

    knobs: Knobs | None
    rescored: int
    cost: float
    queue_s: float
    run_s: float
    share: float
    most_cost: float

    @property
    def total_s(self) -> float:
        """Until both steps are done."""
        return self.queue_s + self.run_s

    def __str__(self) -> str:
        """In words."""
        if self.knobs is None:
            return "exact scores of all documents"
        again = f", {self.rescored} documents scored again" if self.rescored else ""
        return (shown(self.knobs) or "the first model") + again


def choose(firsts: Sequence[First], exact: Exact, documents: int, counts: Sequence[int], budget: Budget) -> Choice:
    """Chooses the first step and how many documents the second scores again, by the last three rows of the table.

    Args:
        firsts: permitted settings whose lists were measured, the exact one of the same model aside.
        exact: the exact scores of all documents.
        documents: of the list.
        counts: numbers of documents at which their second step keeps the top more often, ascending.
        budget: what has to be kept.

    Returns:
        The choice. Without `min_agreement` it may exceed the budget: where nothing is in time it is the fastest, and
        where nothing is cheap enough the cheapest, which the caller refuses.

    Raises:
        GoalOutOfReach: nothing reaches `min_agreement`, or not within the budget, or nothing is permitted.
        Overloaded: it is reached in time once less is waiting.
    """
    whole = Choice(None, documents, exact.cost, exact.queue_s, exact.run_s, exact.bound, exact.cost)
    if budget.min_agreement is not None:
        least = [_least(first, exact, documents, counts, budget.min_agreement) for first in firsts]
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
        # Where no second step may use what a cheap first one leaves, that would only be less accurate.
        sign = -1 if exact.permitted else 1
        return max(in_time, key=lambda each: (each.knobs is None, each.share, sign * each.cost))
    return min(affordable, key=lambda each: each.total_s) if affordable else min(choices, key=lambda each: each.cost)


def _most(first: First, exact: Exact, documents: int, budget: Budget) -> Choice:
    """A setting with as many documents scored again as the budget then holds."""
    held = min(1.0, (budget.cost - first.cost) / exact.cost)
    if budget.max_latency_ms is not None:
        held = min(held, (budget.left_s - first.queue_s - first.run_s - exact.queue_s) / exact.run_s)
    count = max(0, math.floor(held * documents)) if exact.permitted else 0
    kept = first.keeps(count)
    # The rest of the budget is filled, so that of two settings the one that leaves more of it counts as the cheaper.
    share, cost = 0.0 if kept is None else kept.value, first.cost
    return Choice(first.knobs, count, cost, first.queue_s, first.run_s, share, cost)


def _least(first: First, exact: Exact, documents: int, counts: Sequence[int], min_agreement: float) -> Choice | None:
    """A setting with as few documents scored again as reach a goal; None where it does not."""
    for count in counts:
        kept = first.keeps(count)
        if kept is not None and kept.bound >= min_agreement and (exact.permitted or not count):
            part = count / documents
            queue_s = first.queue_s + (exact.queue_s if count else 0.0)
            cost, run_s = first.cost + exact.cost * part, first.run_s + exact.run_s * part
            most_cost = first.cost + exact.most_costs[count]
            return Choice(first.knobs, count, cost, queue_s, run_s, kept.bound, most_cost)
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
    affordable = [each for each in reaching if each.most_cost <= budget.cost]
    if not affordable:
        least = min(reaching, key=lambda each: each.most_cost)
        needs = rounded_up(least.most_cost)
        takes = f"{AGREEMENT} {min_agreement:g} takes {needs} billion multiply-adds here ({least})"
        if budget.max_cost is None or budget.cost < budget.max_cost:
            raise GoalOutOfReach(
                f"{takes}, and the service allows {budget.cost:g}: lower {AGREEMENT} or send fewer documents",
                param=AGREEMENT,
                allowed="a lower one",
            )
        raise GoalOutOfReach(
            f"{takes}, and {COST} is {budget.cost:g}: raise {COST} or lower {AGREEMENT}",
            param=COST,
            allowed=f"{needs} or more with {AGREEMENT} {min_agreement:g}",
        )
    in_time = [each for each in affordable if each.total_s <= budget.left_s]
    if in_time:
        return min(in_time, key=lambda each: each.cost)
    assert budget.max_latency_ms is not None
    fastest = min(affordable, key=lambda each: each.run_s)
    raise too_slow(
        str(fastest), (fastest.queue_s, fastest.run_s), min_agreement, budget.max_latency_ms, budget.elapsed_s
    )
