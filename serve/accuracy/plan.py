"""The one decision: what a request runs with, or why it is refused.

Nothing else decides by a goal, a ceiling, a floor or the limit on cost: what needs one asks this room.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from attenuator.api import ChosenBy, Goals, Options
from attenuator.errors import InvalidRequest, KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.ops.knobs import Knobs, KnobValue, accuracy_rank, clamped, shown
from attenuator.runtime import Model, Row
from attenuator.runtime.explaining import check_certainty, judge_of
from attenuator.runtime.request import check_goals
from attenuator.serve.accuracy.brownout import Floors, Level, check_floors, knobs_at, policy_floors
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.goals import AGREEMENT, GOALS, LATENCY, Circumstances, default_knobs_for, knobs_for
from attenuator.serve.accuracy.list_choice import Budget, Exact, First, choose
from attenuator.serve.accuracy.list_steps import CASCADE, RESCORE, ListFields, Second, Steps, above_budget, steps_of

FILLED = 0.8  # of the time until a deadline, by a second step whose documents a budget counts


@dataclass(frozen=True, slots=True)
class Asked:
    """Accuracy fields of a request, checked against its model.

    Attributes:
        knobs: a value for every knob: the caller's, else the model's default.
        requested: those that the caller set.
        goals: `min_agreement` and `max_latency_ms`, as far as they are stated.
        escalate: whether answers that are not sure enough run again.
        degradable_to: how far load may lower the knobs; None where the caller does not say.
        steps: of its list; None where it has one step, as every request but those that rerank.
    """

    knobs: Knobs
    requested: Knobs = field(default_factory=dict)
    goals: Goals = field(default_factory=Goals)
    escalate: bool = False
    degradable_to: Floors | None = None
    steps: Steps | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        options: Options,
        knobs: Knobs,
        requested: Collection[str],
        of_list: ListFields | None = None,
    ) -> "Asked":
        """Checks what a request has; `of_list` are the fields about a list's steps, where it has one.

        Raises:
            InvalidRequest: by the rules under the table of `plan`.
        """
        goals: Goals = {}
        if not options.model_fields_set.isdisjoint(GOALS):
            goals = cast(Goals, options.model_dump(include=set(GOALS), exclude_unset=True))
        steps = None if of_list is None else steps_of(model, of_list, goals, requested, escalate=options.escalate)
        if goals and steps is None:
            beside = [] if options.escalate else list(requested)
            check_goals(model.manifest, model.calibration, goals, beside)
        if options.explain or options.escalate:
            check_certainty(model, options)
        floors = options.degradable_to
        if floors is not None:
            chosen = goals or (steps and steps.chooses)
            by_length = chosen or (not requested and model.calibration and model.calibration.default_agreement)
            floors = check_floors(floors, model.knobs, None if by_length else knobs)  # what a goal chooses later
        return cls(knobs, {name: knobs[name] for name in requested}, goals, options.escalate, floors, steps)

    @property
    def last(self) -> Model | None:
        """The model of the second step; None where the request has one."""
        return None if self.steps is None else self.steps.last

    @property
    def speaks(self) -> bool:
        """Whether the caller says anything of accuracy, so that the operator's floors are not for it."""
        return bool(self.requested or self.goals or (self.steps is not None and self.steps.max_cost is not None))

    def second_within(
        self, second: Second, limits: "Limits", timeout_ms: float | None
    ) -> tuple["Limits", float | None]:
        """Limits and deadline of a list's second step: the budgets besides; one that a goal takes is not cut short.

        What a budget fills ends well before a deadline, past which nothing at all would be answered.
        """
        assert self.steps is not None
        costs = [each for each in (self.steps.max_cost, limits.max_cost) if each is not None]
        timeout_ms = timeout_ms if timeout_ms is None or self.steps.rescore is not None else FILLED * timeout_ms
        times = [] if second.least else [each for each in (timeout_ms, self.goals.get(LATENCY)) if each is not None]
        return replace(limits, max_cost=min(costs, default=None)), min(times, default=None)

    def by_last(self, steps: Steps) -> "Asked":
        """The same where the last model of a cascade scores all documents."""
        return Asked(steps.last.knobs.exact(), goals=self.goals, steps=replace(steps, whole=True))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the API key and the operator on a request's accuracy.

    Attributes:
        ceilings: the most accurate value that its API key may have, by knob.
        key: the name of that key.
        max_cost: billions of multiply-adds for the whole request; None has no limit.
        brownout_to: the operator's floors, by knob.
    """

    ceilings: Knobs = field(default_factory=dict)
    key: str = ""
    max_cost: float | None = None
    brownout_to: Mapping[str, float] = field(default_factory=dict)

    def permit(self, work: Work, knobs: Knobs) -> bool:
        """Whether a request may run at a setting."""
        return (self.max_cost is None or work.cost(knobs) <= self.max_cost) and self.allow(knobs)

    def allow(self, knobs: Knobs) -> bool:
        """Whether a setting is within the ceilings."""
        return not any(
            _is_above(name, knobs[name], ceiling) for name, ceiling in self.ceilings.items() if name in knobs
        )

    def leave_room(self, work: Work, rows: Sequence[Row], spent: float) -> bool:
        """Whether a request that has spent some multiply-adds may run further rows."""
        return self.max_cost is None or work.cost_besides(rows, spent) <= self.max_cost


@dataclass(frozen=True, slots=True)
class Load:
    """Work of a request whose inputs are tokenized, and the load that it meets.

    Attributes:
        work: what the request makes run.
        elapsed_s: since it began.
        forecast: seconds until it would run at a setting, and those that it would then run.
        pressure: seconds that its rows would wait, how full the service is (0 to 1), and the clock. It and `level` are
            asked only about requests that may be lowered, since these alone move the level.
        finds_room: whether the queue has room for it at a setting.
        level: of its API key and class.
        last: the same for the second step of a list, as if it scored all documents; None where there is none.
    """

    work: Work
    elapsed_s: float
    forecast: Callable[[Knobs], tuple[float, float]]
    pressure: Callable[[], tuple[float, float, float]]
    finds_room: Callable[[Knobs], bool]
    level: Callable[[], Level]
    last: "Load | None" = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Knobs of a request, as decided.

    Attributes:
        knobs: a value for every knob of the model.
        by: who chose them.
        unlowered: the same before load lowered them.
        floors: how far load may lower them; empty where it may not.
        reach: probability to agree that each answer has to reach by escalation; None without escalation.
        second: the second step of a list; None without one.
    """

    knobs: Knobs
    by: ChosenBy
    unlowered: Knobs
    floors: Floors
    reach: float | None = None
    second: Second | None = None

    def least(self, model: Model, tokens: Sequence[int]) -> Knobs:
        """The lowest setting that load may leave to a request of so many tokens an input."""
        return knobs_at(model, self.knobs, self.floors, 1.0, tokens)


def plan(model: Model, asked: Asked, limits: Limits, load: Load | None = None) -> Plan:
    """Decides what a request runs with.

    Rows 1 to 6 set the knobs, and of those that apply to a request the last one decides. Rows 7 and 8 refuse or lower
    what they have set; a setting is *permitted* where neither the ceilings of the API key nor `--max-cost` refuse it.
    Rows 3 to 8 need the inputs' lengths; without a `load` rows 1 and 2 are done, which is enough to refuse a request
    for which there is no room.

    | row | mechanism | what it does | refuses with |
    | --- | --- | --- | --- |
    | 1 | defaults | the model's default of each knob, the bundle's or with `--default exact` the exact value; lowered \
to the ceilings of the API key | |
    | 2 | knobs of the caller | replace those of 1 and run as they are | KnobOutOfRange above a ceiling |
    | 3 | default goal | where the caller sets nothing (2, 4, 5, 6): the setting that is estimated to keep the \
calibration's default agreement, else the next permitted one of the frontier, else row 1 | |
    | 4 | `escalate` | begins with the caller's knobs, else with the permitted setting of the least expected time | \
GoalOutOfReach |
    | 5 | `min_agreement` | the cheapest permitted setting that keeps it | GoalOutOfReach |
    | 6 | `max_latency_ms` | the most accurate permitted setting that is in time, else the fastest, else row 1; \
beside 5 it has to keep 5 | GoalOutOfReach; Overloaded where only the load is in the way |
    | | steps of a list | take the place of 5 and 6: see `list_steps` | likewise; InvalidRequest above `max_cost` |
    | 7 | `--max-cost` | leaves the knobs alone | InvalidRequest |
    | 8 | load | lowers the knobs, where that costs less, to `degradable_to`, else to `--brownout-to` where none of 2, \
4, 5, 6 spoke; never those of 4 and 5; never below the floors; all the way where there is no room otherwise | |

    Beforehand `Asked.of` refuses what contradicts itself: a goal beside a knob (except with `escalate`), a goal without
    calibration, `escalate` without `min_agreement` or beside `max_latency_ms`, and a floor above the knob of row 1 or
    2. A floor above what a goal chooses, the default one too, is allowed and does nothing.

    Raises:
        InvalidRequest: as the table says.
        Overloaded: likewise.
    """
    knobs = _within_ceilings(model, asked, limits) if limits.ceilings else asked.knobs
    by: ChosenBy = "caller" if asked.requested else "default"
    floors = _floors(model, asked, limits) if asked.degradable_to or limits.brownout_to else {}
    if load is None:
        return Plan(knobs, by, knobs, floors)
    work, permits, second = load.work, partial(limits.permit, load.work), None
    longest = max(work.tokens)
    if asked.escalate:
        start = judge_of(model).start(longest, asked.goals[AGREEMENT], permits)
        knobs, by = knobs if asked.requested else start or knobs, "escalation"
    elif asked.goals and asked.steps is None:
        now = Circumstances(longest, load.elapsed_s, load.forecast, permits, knobs)
        knobs, by = knobs_for(model, now, **asked.goals), "goal"
    elif not asked.requested and (asked.steps is None or not asked.steps.whole):
        knobs = default_knobs_for(model, longest, permits) or knobs
    if asked.steps is not None:
        knobs, second = steps_within(model, asked.steps, asked.goals, limits, load, knobs)
        by = "goal" if asked.steps.chooses else by
        if second is not None and second.whole:
            return Plan(knobs, by, knobs, {}, second=second)
    if limits.max_cost is not None:
        work.check_cost(knobs, limits.max_cost)
    if floors:
        lowered = knobs_at(model, knobs, floors, level_of(load, knobs), work.tokens)
        if work.cost(lowered) < work.cost(knobs):  # exact answers have no draws, which may cost more than is saved
            return Plan(lowered, "brownout", knobs, floors, second=second)
    return Plan(knobs, by, knobs, floors, asked.goals[AGREEMENT] if asked.escalate else None, second)


def steps_within(
    model: Model, steps: Steps, goals: Goals, limits: Limits, load: Load, knobs: Knobs
) -> tuple[Knobs, Second | None]:
    """Decides the steps of a list within the limits; `knobs` are those of the first step where nothing chooses them.

    Raises:
        InvalidRequest: the first step alone is above the budget, the second may be above the limit on cost, or the
            ceilings of the API key refuse exact scores.
        GoalOutOfReach: as `list_choice.choose` has it; likewise Overloaded.
    """
    assert load.last is not None
    exact, documents = steps.last.knobs.exact(), len(load.work.tokens)
    permitted = limits.allow(exact)
    if not permitted and (steps.cascade or steps.rescore is not None):
        name = RESCORE if steps.rescore is not None else CASCADE
        raise KnobOutOfRange(
            f"{name} scores documents at the exact value of every knob, which the API key '{limits.key}' may not have: "
            f"send a request without {name}",
            param=name,
            allowed=f"no {name}",
        )
    second: Second | None = Second(min(steps.rescore or documents, documents)) if permitted else None
    if steps.whole:
        second = None
    elif steps.chooses:
        chosen, second = _first_step(model, steps, goals, limits, load, permitted)
        knobs = knobs if chosen is None else chosen
    work, setting = (load.last.work, exact) if second is not None and second.whole else (load.work, knobs)
    if steps.max_cost is not None and (cost := work.cost(setting)) > steps.max_cost:
        raise above_budget(cost, steps.max_cost, setting)
    if steps.rescore is not None and limits.max_cost is not None and (steps.cascade or knobs != exact):
        _check_rescore(steps.rescore, work.cost(knobs), load.last.work, limits.max_cost)
    return knobs, second


def _first_step(
    model: Model, steps: Steps, goals: Goals, limits: Limits, load: Load, permitted: bool
) -> tuple[Knobs | None, Second | None]:
    """The knobs of the first step and what the second does; no knobs where the last model scores all documents."""
    assert load.last is not None
    assert steps.measured is not None
    measured, work, documents = steps.measured, load.work.coarse(), len(load.work.tokens)
    goal, exact, top = goals.get(AGREEMENT), steps.last.knobs.exact(), steps.top(documents)
    if goal is None:
        top = min(top, measured.tops[-1])
    untimed, firsts = LATENCY not in goals, []
    for setting in (model.knobs.check(each.knobs) for each in measured.settings):
        if (steps.cascade or setting != exact) and limits.permit(work, setting):
            keeps = partial(measured.same_top, setting, documents=documents, top_n=top)
            seconds = (0.0, 0.0) if untimed else load.forecast(setting)
            firsts.append(First(setting, work.cost(setting), *seconds, keeps))
    bound = 1.0
    if not steps.cascade and model.calibration and model.calibration.reference:
        kept = measured.same_top(exact, 0, documents, top)
        bound = 0.0 if kept is None else kept.bound
    again = load.last.work
    seconds = (0.0, 0.0) if untimed else load.last.forecast(exact)
    whole = Exact(again.cost(exact), *seconds, again.most_costs(exact), permitted, bound)
    budget = Budget(steps.max_cost, limits.max_cost, load.elapsed_s, goal, goals.get(LATENCY))
    choice = choose(firsts, whole, documents, measured.counts(documents), budget)
    if choice.knobs is None:
        return (None, Second(documents, whole=True)) if steps.cascade else (exact, None)
    if goal is not None:
        return choice.knobs, Second(choice.rescored, least=choice.rescored) if choice.rescored else None
    return choice.knobs, Second(documents) if permitted else None


def _check_rescore(rescore: int, first: float, last: Work, max_cost: float) -> None:
    """Refuses to score so many documents again that with the first step's cost they may be above a limit."""
    costs = last.most_costs(last.model.knobs.exact())
    most = bisect_right(costs, max_cost - first) - 1  # -1 where the first step alone is above it, which is refused too
    if 0 <= most < min(rescore, len(last.tokens)):
        raise InvalidRequest(
            f"{RESCORE} is {rescore}, must be at most {most} here: with more the predicted cost may be above "
            f"{max_cost:g} billion multiply-adds",
            param=RESCORE,
            allowed=f"at most {most}" if most else f"no {RESCORE}",
        )


def level_of(load: Load, knobs: Knobs) -> float:
    """How far load lowers a request that may be lowered, from 0 to 1: to its floors where it finds no room."""
    level = load.level().observe(*load.pressure())
    return level if load.finds_room(knobs) else 1.0


def _within_ceilings(model: Model, asked: Asked, limits: Limits) -> Knobs:
    """The caller's knobs and the defaults, these lowered to the ceilings of the API key."""
    lowered: dict[str, KnobValue] = {}
    for name, ceiling in limits.ceilings.items():
        row = model.knobs.rows.get(name)
        if row is None or not _is_above(name, asked.knobs[name], ceiling):
            continue
        if name in asked.requested:
            allowed = allowed_by(name, ceiling)
            raise KnobOutOfRange(
                f"{name} is {shown(asked.knobs[name])}, must be {allowed} for the API key '{limits.key}'",
                param=name,
                allowed=allowed,
            )
        lowered[name] = clamped(row, ceiling)
    return {**asked.knobs, **lowered} if lowered else asked.knobs


def _floors(model: Model, asked: Asked, limits: Limits) -> Floors:
    """How far load may lower a request; empty where it may not."""
    if AGREEMENT in asked.goals:
        return {}
    if asked.degradable_to is not None:
        return asked.degradable_to
    return {} if asked.speaks else policy_floors(limits.brownout_to, model.knobs)


def _is_above(name: str, value: KnobValue, ceiling: KnobValue) -> bool:
    """Whether a knob's value is more accurate than a ceiling."""
    return accuracy_rank(KNOBS[name], value) > accuracy_rank(KNOBS[name], ceiling)


def allowed_by(name: str, ceiling: KnobValue) -> str:
    """The values of a knob that a ceiling allows, in words."""
    knob = KNOBS[name]
    within = f"at most {shown(ceiling)}" if knob.accuracy == "rises" else f"at least {shown(ceiling)}"
    exact_is_within = knob.exact < ceiling if knob.accuracy == "rises" else knob.exact > ceiling
    return f"{within} and not {knob.exact:g} (its exact value)" if exact_is_within else within
