"""The steps of a list, row by row of the table in `list_steps`, and the choice among settings that were measured."""

import copy
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from calibrations import calibration, parsed
from list_calibrations import list_calibration

from attenuator.api import Options
from attenuator.errors import GoalOutOfReach, InvalidRequest, KnobOutOfRange, NotCalibrated, Overloaded
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model
from attenuator.serve.accuracy.brownout import Level
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.list_choice import Budget, Choice, Exact, First, choose
from attenuator.serve.accuracy.list_steps import ListFields, Second
from attenuator.serve.accuracy.plan import Asked, Limits, Load, Plan, plan

KNOB, DEFAULT, DOCUMENTS = "num_hashes", 32, 40
LENGTHS = [1000 + 10 * place for place in range(DOCUMENTS)]
# hashes: lists of 100 whose top 1 and top 5 are kept, by share; predicted seconds of all documents
MEASURED = {
    0: ([[100] * 4, [100] * 4], 1.0),
    64: ([[90, 97, 100, 100], [80, 95, 99, 100]], 0.4),
    16: ([[70, 90, 99, 100], [50, 85, 97, 100]], 0.2),
    4: ([[40, 70, 95, 100], [20, 50, 90, 100]], 0.1),
}
SETTINGS = [({KNOB: hashes}, kept) for hashes, (kept, _) in MEASURED.items()]


@pytest.fixture(scope="module")
def model(models: dict[str, Model]) -> Model:
    """A model whose lists were measured."""
    model = copy.copy(models["yoso"])
    model.calibration = parsed(list_calibration(model, SETTINGS))
    return model


@pytest.fixture(scope="module")
def last(models: dict[str, Model]) -> Model:
    """A larger one."""
    return models["mca"]


@pytest.fixture(scope="module")
def before(models: dict[str, Model], last: Model) -> Model:
    """A model whose lists were measured before the larger one."""
    model = copy.copy(models["yoso"])
    model.calibration = parsed(list_calibration(model, SETTINGS, reference=last.manifest.revision))
    return model


def decide(
    model: Model,
    *,
    of_list: ListFields,
    fields: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    queue_s: float = 0.0,
    level: float = 0.0,
) -> Plan:
    """The plan of a list; both steps are predicted to take the seconds of `MEASURED`, the larger model 1 s."""
    requested = {name: value for name, value in (fields or {}).items() if name == KNOB}
    options = Options.model_validate({name: value for name, value in (fields or {}).items() if name != KNOB})
    asked = Asked.of(model, options, model.knobs.check(requested), requested, of_list)
    return decided_by(model, asked, limits, queue_s, level)


def decided_by(
    model: Model, asked: Asked, limits: Limits | None = None, queue_s: float = 0.0, level: float = 0.0
) -> Plan:
    """The plan of what a list asks, likewise."""

    def load(work: Work) -> Load:
        def forecast(knobs: Knobs) -> tuple[float, float]:
            return queue_s, MEASURED.get(int(knobs[KNOB]), (None, 0.3))[1] if KNOB in knobs else 1.0

        wait_s = (level + 1) / 2 if level else 0.0
        return Load(work, 0.0, forecast, lambda: (wait_s, 0.0, 0.0), lambda knobs: True, lambda: Level(1.0))

    work = Work(model, LENGTHS)
    again = None if asked.last is None else load(replace(work, model=asked.last))
    return plan(model, asked, limits or Limits(), replace(load(work), last=again))


def costs(model: Model, knobs: Knobs) -> float:
    return Work(model, LENGTHS).cost(knobs)


ALL = Second(DOCUMENTS)
AMPLE = 1e9


@pytest.mark.parametrize(
    ("of_list", "fields", "hashes", "by", "second"),
    [
        # nothing
        ({}, {}, DEFAULT, "default", None),
        ({}, {KNOB: 16}, 16, "caller", None),
        # rescore
        ({"rescore": 7}, {KNOB: 16}, 16, "caller", Second(7)),
        ({"rescore": 7}, {}, DEFAULT, "default", Second(7)),
        ({"rescore": 700}, {}, DEFAULT, "default", ALL),
        # budgets beside knobs
        ({"max_cost": AMPLE}, {KNOB: 16}, 16, "caller", ALL),
        ({}, {KNOB: 16, "max_latency_ms": 5}, 16, "caller", ALL),
        ({"max_cost": AMPLE}, {KNOB: 16, "max_latency_ms": 5}, 16, "caller", ALL),
        # budgets that choose: all documents exactly where that fits, else by what is kept of the top
        ({"max_cost": AMPLE}, {}, 0, "goal", None),
        ({}, {"max_latency_ms": 1000}, 0, "goal", None),
        ({}, {"max_latency_ms": 999}, 64, "goal", ALL),
        ({}, {"max_latency_ms": 601}, 64, "goal", ALL),
        ({}, {"max_latency_ms": 590}, 16, "goal", ALL),
        ({"top_n": 1}, {"max_latency_ms": 410}, 16, "goal", ALL),
        ({}, {"max_latency_ms": 150}, 4, "goal", ALL),
        ({}, {"max_latency_ms": 1}, 4, "goal", ALL),
        ({"top_n": 30}, {"max_latency_ms": 601}, 64, "goal", ALL),
        # min_agreement: bounds of 100, 99, 97, 95, 90 and 85 lists are 0.97, 0.95, 0.92, 0.89, 0.83 and 0.78
        ({}, {"min_agreement": 0.93}, 64, "goal", Second(20, least=20)),
        ({}, {"min_agreement": 0.9}, 16, "goal", Second(20, least=20)),
        ({}, {"min_agreement": 0.75}, 16, "goal", Second(8, least=8)),
        ({"top_n": 1}, {"min_agreement": 0.6}, 16, "goal", None),
        ({}, {"min_agreement": 1}, 0, "goal", None),
        ({"top_n": 6}, {"min_agreement": 0.1}, 0, "goal", None),
        # and a budget
        ({"max_cost": AMPLE}, {"min_agreement": 0.75}, 16, "goal", Second(8, least=8)),
        ({}, {"min_agreement": 0.75, "max_latency_ms": 405}, 16, "goal", Second(8, least=8)),
    ],
)
def test_a_row_says_what_the_steps_are(
    model: Model, of_list: dict[str, Any], fields: dict[str, Any], hashes: int, by: str, second: Second | None
) -> None:
    decided = decide(model, of_list=ListFields(**of_list), fields=fields)
    assert (decided.knobs, decided.by, decided.second) == ({KNOB: hashes}, by, second)


@pytest.mark.parametrize(
    ("of_list", "fields", "hashes", "by", "second"),
    [
        ({"rescore": 7}, {}, DEFAULT, "default", Second(7)),
        ({"rescore": 7}, {KNOB: 4}, 4, "caller", Second(7)),
        ({"max_cost": AMPLE}, {KNOB: 4}, 4, "caller", ALL),
        ({"max_cost": AMPLE}, {}, DEFAULT, "goal", Second(DOCUMENTS, whole=True)),
        ({}, {"max_latency_ms": 999}, 64, "goal", ALL),
        ({}, {"min_agreement": 0.75}, 16, "goal", Second(8, least=8)),
        ({}, {"min_agreement": 1}, DEFAULT, "goal", Second(DOCUMENTS, whole=True)),
    ],
)
def test_a_row_says_what_the_steps_of_two_models_are(
    before: Model,
    last: Model,
    of_list: dict[str, Any],
    fields: dict[str, Any],
    hashes: int,
    by: str,
    second: Second | None,
) -> None:
    decided = decide(before, of_list=ListFields(**of_list, last=last), fields=fields)
    assert (decided.knobs, decided.by, decided.second) == ({KNOB: hashes}, by, second)


def test_all_documents_by_the_last_model_are_exact_whatever_its_default(before: Model, last: Model) -> None:
    calibrated = copy.copy(last)
    settings = [(last.knobs.exact(), [1000]), (last.knobs.defaults(), [1000])]
    revision, longest = last.manifest.revision, last.manifest.max_tokens
    calibrated.calibration = parsed(calibration(revision, [longest], settings, default_agreement=0.9))
    assert decide(calibrated, of_list=ListFields()).knobs == last.knobs.defaults() != last.knobs.exact()
    asked = Asked.of(before, Options(), {KNOB: 16}, (), ListFields(max_cost=AMPLE, last=calibrated))
    assert asked.steps
    decided = decided_by(calibrated, asked.by_last(asked.steps))
    assert (decided.knobs, decided.by, decided.second) == (last.knobs.exact(), "goal", None)


def test_two_models_that_were_not_measured_together_fill_a_budget_at_the_default(model: Model, last: Model) -> None:
    for fields in ({"max_latency_ms": 5}, {}):
        decided = decide(model, of_list=ListFields(last=last, max_cost=AMPLE), fields=fields)
        assert (decided.knobs, decided.by, decided.second) == ({KNOB: DEFAULT}, "default", ALL)
    with pytest.raises(NotCalibrated, match="model 'yoso' before 'mca' has none"):
        decide(model, of_list=ListFields(last=last), fields={"min_agreement": 0.5})


def test_lists_that_do_not_begin_with_the_exact_setting_are_no_calibration(model: Model) -> None:
    with pytest.raises(ValueError, match="must begin with the first of all settings, the exact one"):
        parsed(list_calibration(model, SETTINGS[::-1]))


def test_a_rounded_model_promises_what_its_exact_scores_keep_of_the_order(model: Model) -> None:
    rounded = copy.copy(model)
    kept = [({KNOB: 0}, [[97] * 4, [95] * 4]), ({KNOB: 16}, [[70, 90, 97, 97], [50, 85, 95, 95]])]
    rounded.calibration = parsed(list_calibration(rounded, kept) | {"reference": "1" * 64})
    assert decide(rounded, of_list=ListFields(), fields={"min_agreement": 0.88}).knobs == {KNOB: 16}
    with pytest.raises(GoalOutOfReach, match="rounding"):
        decide(rounded, of_list=ListFields(), fields={"min_agreement": 0.9})


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 1000])
def test_a_bound_of_a_long_list_is_predicted_from_few_lengths(model: Model, count: int) -> None:
    draw = random.Random(count)
    work = Work(model, [draw.randint(1, 3000) for _ in range(count)])
    coarse = work.coarse()
    assert len(coarse.tokens) == count
    assert len(set(coarse.tokens)) <= 16
    assert all(one <= other for one, other in zip(sorted(work.tokens), coarse.tokens, strict=True))
    assert count > 16 or sorted(work.tokens) == coarse.tokens
    for hashes in MEASURED:
        assert work.cost({KNOB: hashes}) <= 1.0000001 * coarse.cost({KNOB: hashes})


def limited(model: Model, **fields: Any) -> Limits:
    """Limits with `max_cost` as a setting and a share of the exact cost beside it."""
    if "max_cost" in fields:
        hashes, share = fields["max_cost"]
        fields["max_cost"] = costs(model, {KNOB: hashes}) + share * costs(model, {KNOB: 0})
    if "ceilings" in fields:
        fields["ceilings"] = {KNOB: fields["ceilings"]}
    return Limits(**fields, key="k")


@pytest.mark.parametrize(
    ("of_list", "fields", "limits", "hashes", "second"),
    [
        ({"rescore": 20}, {KNOB: 16}, {"max_cost": (16, 0.65)}, 16, Second(20)),
        ({"max_cost": AMPLE}, {}, {"max_cost": (64, 0.21)}, 64, ALL),
        ({"max_cost": AMPLE}, {}, {"max_cost": (16, 0.02)}, 16, ALL),
        # a ceiling below the exact value leaves one step
        ({"max_cost": AMPLE}, {}, {"ceilings": 20}, 16, None),
        ({"max_cost": AMPLE}, {KNOB: 16}, {"ceilings": 20}, 16, None),
        ({}, {"max_latency_ms": 300}, {"ceilings": 20}, 16, None),
        ({"top_n": 1}, {"min_agreement": 0.6}, {"ceilings": 20}, 16, None),
    ],
)
def test_what_others_allow_limits_both_steps(
    model: Model,
    of_list: dict[str, Any],
    fields: dict[str, Any],
    limits: dict[str, Any],
    hashes: int,
    second: Second | None,
) -> None:
    decided = decide(model, of_list=ListFields(**of_list), fields=fields, limits=limited(model, **limits))
    assert (decided.knobs, decided.second) == ({KNOB: hashes}, second)


@pytest.mark.parametrize(
    ("of_list", "fields", "limits", "queue_s", "kind", "param"),
    [
        ({"rescore": 20}, {KNOB: 16}, {"max_cost": (16, 0.5)}, 0.0, InvalidRequest, "rescore"),
        ({"rescore": 1}, {KNOB: 16}, {"max_cost": (16, 0.0)}, 0.0, InvalidRequest, "rescore"),
        ({"rescore": 1}, {KNOB: 16}, {"max_cost": (4, 0.0)}, 0.0, InvalidRequest, KNOB),
        ({"rescore": 1}, {KNOB: 16}, {"ceilings": 20}, 0.0, KnobOutOfRange, "rescore"),
        ({"max_cost": AMPLE}, {KNOB: 16}, {"max_cost": (4, 0.0)}, 0.0, InvalidRequest, KNOB),
        ({"max_cost": 1e-9}, {KNOB: 16}, {}, 0.0, InvalidRequest, "max_cost"),
        ({"max_cost": 1e-9}, {}, {}, 0.0, InvalidRequest, "max_cost"),
        ({"max_cost": AMPLE}, {}, {"ceilings": 3}, 0.0, GoalOutOfReach, "max_cost"),
        ({}, {"min_agreement": 0.75}, {"ceilings": 20}, 0.0, GoalOutOfReach, "min_agreement"),
        ({}, {"min_agreement": 0.75}, {"max_cost": (16, 0.1)}, 0.0, GoalOutOfReach, "min_agreement"),
        ({"max_cost": 1e-9}, {"min_agreement": 0.75}, {}, 0.0, GoalOutOfReach, "max_cost"),
        ({}, {"min_agreement": 0.75, "max_latency_ms": 200}, {}, 0.0, GoalOutOfReach, "max_latency_ms"),
        ({}, {"min_agreement": 0.75, "max_latency_ms": 900}, {}, 0.4, Overloaded, None),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    model: Model,
    of_list: dict[str, Any],
    fields: dict[str, Any],
    limits: dict[str, Any],
    queue_s: float,
    kind: type[InvalidRequest | Overloaded],
    param: str | None,
) -> None:
    with pytest.raises(kind) as caught:
        decide(model, of_list=ListFields(**of_list), fields=fields, limits=limited(model, **limits), queue_s=queue_s)
    assert type(caught.value) is kind
    assert getattr(caught.value, "param", None) == param


def test_a_refusal_says_how_many_documents_fit(model: Model) -> None:
    limits = limited(model, max_cost=(16, 0.5))
    with pytest.raises(InvalidRequest, match="rescore is 40, must be at most (\\d+) here") as caught:
        decide(model, of_list=ListFields(rescore=40), fields={KNOB: 16}, limits=limits)
    most = int(str(caught.value.allowed).rsplit(" ", 1)[-1])
    assert decide(model, of_list=ListFields(rescore=most), fields={KNOB: 16}, limits=limits).second == Second(most)
    with pytest.raises(InvalidRequest):
        decide(model, of_list=ListFields(rescore=most + 1), fields={KNOB: 16}, limits=limits)


@pytest.mark.parametrize(
    ("of_list", "fields", "limits", "hashes", "by"),
    [
        ({"rescore": 7}, {}, {"brownout_to": {KNOB: 8}}, 8, "brownout"),
        ({"rescore": 7}, {KNOB: 16}, {"brownout_to": {KNOB: 8}}, 16, "caller"),
        ({"rescore": 7}, {KNOB: 16, "degradable_to": {KNOB: 8}}, {}, 8, "brownout"),
        ({}, {"max_latency_ms": 590}, {"brownout_to": {KNOB: 8}}, 16, "goal"),
        ({"max_cost": AMPLE}, {}, {"brownout_to": {KNOB: 8}}, 0, "goal"),
        ({"max_cost": AMPLE}, {"degradable_to": {KNOB: 8}}, {}, 8, "brownout"),
        ({}, {"min_agreement": 0.75, "degradable_to": {KNOB: 8}}, {}, 16, "goal"),
    ],
)
def test_load_lowers_the_first_step_as_far_as_it_may(
    model: Model, of_list: dict[str, Any], fields: dict[str, Any], limits: dict[str, Any], hashes: int, by: str
) -> None:
    decided = decide(model, of_list=ListFields(**of_list), fields=fields, limits=Limits(**limits), level=1.0)
    assert (decided.knobs, decided.by) == ({KNOB: hashes}, by)


COST = {64: 4.0, 16: 2.0, 4: 1.0}
EXACT_COST, LONG = 10.0, 100


def chosen(model: Model, budget: Budget, *, permitted: bool = True) -> Choice:
    """The choice for 100 documents at the costs above; seconds are a tenth of them."""
    assert model.calibration
    assert model.calibration.lists
    keeps = partial(model.calibration.lists.same_top, documents=LONG, top_n=5)
    firsts = [
        First({KNOB: hashes}, cost, 0.0, cost / 10, partial(keeps, {KNOB: hashes})) for hashes, cost in COST.items()
    ]
    most = [EXACT_COST * count / LONG for count in range(LONG + 1)]
    exact = Exact(EXACT_COST, 0.0, EXACT_COST / 10, most, permitted)
    return choose(firsts, exact, LONG, model.calibration.lists.counts(LONG), budget)


@pytest.mark.parametrize(
    ("cost", "hashes", "rescored"),
    [
        (10.0, None, 100),
        (9.99, 64, 59),
        (6.01, 64, 20),
        (5.99, 16, 39),
        (3.01, 4, 20),  # of two that keep 50 the cheaper
        (2.5, 16, 5),
        (1.0, 4, 0),
        (0.5, 4, 0),  # nothing fits: the cheapest, which is refused
    ],
)
def test_the_first_step_is_the_one_that_keeps_the_top_most_often(
    model: Model, cost: float, hashes: int | None, rescored: int
) -> None:
    by_cost = chosen(model, Budget(max_cost=cost))
    by_time = chosen(model, Budget(max_latency_ms=100 * cost + 0.01))
    assert by_time.rescored == by_cost.rescored == rescored
    for choice in (by_cost, by_time, chosen(model, Budget(cost_limit=cost))):
        assert choice.knobs == (None if hashes is None else {KNOB: hashes})


def test_without_exact_scores_the_first_step_alone_counts(model: Model) -> None:
    for cost, hashes in ((100, 64), (3, 16), (1, 4)):
        choice = chosen(model, Budget(max_cost=cost), permitted=False)
        assert (choice.knobs, choice.rescored) == ({KNOB: hashes}, 0)


def test_without_exact_scores_the_most_accurate_of_equal_first_steps_runs(model: Model) -> None:
    lost = copy.copy(model)
    kept = [[0, 90, 100, 100]] * 2
    settings = [({KNOB: 0}, [[100] * 4] * 2), *(({KNOB: hashes}, kept) for hashes in (64, 16, 4))]
    lost.calibration = parsed(list_calibration(lost, settings))
    for seconds, hashes in ((0.5, 64), (0.3, 16), (0.15, 4)):
        fields, limits = {"max_latency_ms": 1000 * seconds}, Limits({KNOB: 100}, "k")
        assert decide(lost, of_list=ListFields(), fields=fields, limits=limits).knobs == {KNOB: hashes}


@pytest.mark.parametrize(
    ("goal", "hashes", "rescored"), [(0.93, 64, 50), (0.9, 16, 50), (0.85, 64, 20), (0.8, 64, 20), (0.3, 16, 0)]
)
def test_a_goal_takes_the_cheapest_steps_that_reach_it(model: Model, goal: float, hashes: int, rescored: int) -> None:
    choice = chosen(model, Budget(min_agreement=goal))
    assert (choice.knobs, choice.rescored) == ({KNOB: hashes}, rescored)
    assert choice.cost == COST[hashes] + EXACT_COST * rescored / LONG
    assert choice.share >= goal
    with pytest.raises(GoalOutOfReach):
        chosen(model, Budget(max_cost=choice.cost - 0.01, min_agreement=goal))


def test_a_choice_is_within_the_budget_wherever_one_is(model: Model) -> None:
    """And no setting with as many documents as the budget then holds keeps the top more often."""
    assert model.calibration
    lists = model.calibration.lists
    assert lists
    draw = random.Random(0)
    for _ in range(300):
        cost = draw.uniform(0.9, 10.5)
        choice = chosen(model, Budget(max_cost=cost))
        if choice.knobs is None:
            assert cost >= EXACT_COST
            continue
        assert COST[int(choice.knobs[KNOB])] + EXACT_COST * choice.rescored / LONG <= cost + 1e-9 or cost < 1
        for hashes, first in COST.items():
            held = int((cost - first) * LONG / EXACT_COST) if cost >= first else -1
            kept = lists.same_top({KNOB: hashes}, held, LONG, 5) if held >= 0 else None
            assert kept is None or kept.value <= choice.share
