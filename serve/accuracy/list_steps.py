"""The steps of a list for a reranker: what scores all documents, and how many of the best are scored again, exactly.

| what the request sets | first step, over all documents | second step, exact, over the best |
| --- | --- | --- |
| nothing of what follows | as for every request | none |
| `rescore` | the caller's knobs, else the first model's default | so many |
| `max_cost`, `max_latency_ms` beside knobs, or with a cascade whose lists were not measured | the same | as many as \
the rest of the budget holds |
| `max_cost`, `max_latency_ms` | the setting that keeps the top most often with as many as the budget then holds, of \
equal ones the cheaper, or the dearer where no second step is permitted; where nothing is in time the fastest | the \
same |
| `min_agreement` | with the second step the cheapest whose bound reaches it | as many as that takes |
| `min_agreement` and a budget | the same within the budget, else refused | the same |

* *Exact* is the last model at the exact value of every knob. Where that fits for all documents it runs alone.
* Of one model whose first step is exact already, no second one runs.
* `max_cost` goes by predicted cost alone, so that load changes the answer only where it leaves no room for a second
  step. `max_latency_ms` is looked at again once the first step has run.
* `escalate`, and `min_agreement` or `max_latency_ms` of a model whose lists were not measured, mean what they mean for
  texts: one step.

`steps_of` refuses what contradicts itself; the choice among measured settings is in `list_choice`.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from attenuator.api import Goals
from attenuator.calibration import Calibration, how_to_calibrate
from attenuator.calibration.lists import ListCalibration
from attenuator.calibration.schema import shown as shown_knobs
from attenuator.errors import InvalidRequest, NotCalibrated
from attenuator.ops.knobs import Knobs, shown
from attenuator.runtime import Model
from attenuator.runtime.request import check_goals
from attenuator.serve.accuracy.goals import AGREEMENT, LATENCY

COST: Final = "max_cost"
RESCORE: Final = "rescore"
CASCADE: Final = "cascade"


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
        """Share of measured lists whose top was the exact one, no bound; None where that was not measured."""
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
    least = rounded_up(cost)
    at = f" at {shown_knobs(knobs)}" if knobs else ""
    return InvalidRequest(
        f"{COST} is {shown(max_cost)}, must be at least {least} here, the predicted billions of multiply-adds of "
        f"scoring all documents once{at}",
        param=COST,
        allowed=f"{least} or more",
    )


def rounded_up(cost: float) -> str:
    """A cost in three digits that is not above what they say."""
    unit = 10.0 ** (math.floor(math.log10(cost)) - 2)
    return f"{math.ceil(cost / unit) * unit:.3g}"


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
