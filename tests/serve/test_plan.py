"""What a request runs with, row by row of the table in `plan`: every two mechanisms that can meet."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from calibrations import calibration, parsed

from attenuator.errors import GoalOutOfReach, InvalidRequest, KnobOutOfRange, NotCalibrated, Overloaded
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model
from attenuator.runtime.calibrated import exact_by_default
from attenuator.serve.accuracy.brownout import Level
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.plan import Limits, Load, Plan, plan
from attenuator.serve.api.schema import parse_request

TOKENS, DEFAULT = 4000, 32
# hashes: texts of 1,000 that agree, predicted seconds, share of answers of which one is 0.9 sure
MEASURED = {0: (1000, 1.0, 1.0), 256: (998, 0.4, 0.99), 64: (997, 0.2, 0.95), 16: (985, 0.1, 0.9), 4: (960, 0.05, 0.1)}
KNOB = "num_hashes"


@pytest.fixture(scope="module")
def model(models: dict[str, Model]) -> Model:
    model = copy.copy(models["yoso"])
    content = calibration(
        model.manifest.revision, [8192], [({KNOB: hashes}, [texts]) for hashes, (texts, _, _) in MEASURED.items()]
    )
    for setting, (_, seconds, _) in zip(content["settings"], MEASURED.values(), strict=True):
        setting["time"] = [seconds]
    sure = [
        {"knobs": {KNOB: hashes}, "scale": [1 / hashes], "intercept": 0.0, "slope": 1.0, "sure": [[share]]}
        for hashes, (_, _, share) in MEASURED.items()
        if hashes
    ]
    model.calibration = parsed(content | {"certainty": {"texts": 1000, "goals": [0.9], "settings": sure}})
    return model


def loaded(
    work: Work, level: float, forecast: Callable[[Knobs], tuple[float, float]] = lambda knobs: (0.0, 1.0)
) -> Load:
    """A load that lowers a request as far as the level says."""
    wait_s, own = (level + 1) / 2 if level else 0.0, Level(1.0)
    return Load(work, 0.0, forecast, lambda: (wait_s, 0.0, 0.0), lambda knobs: True, lambda: own)


def decide(
    model: Model, fields: dict[str, Any], limits: dict[str, Any], level: float, queue_s: float = 0.0, texts: int = 1
) -> Plan:
    """The plan of a request.

    Args:
        model: which it asks.
        fields: of the request besides its inputs.
        limits: of `Limits`; `max_cost` as the number of hashes that just fit, `ceilings` and `brownout_to` as such.
        level: of the load.
        queue_s: predicted seconds of what runs before it.
        texts: inputs.
    """
    work = Work(model, [TOKENS] * texts, explained=bool(fields.get("explain")) and not fields.get("escalate"))
    given: dict[str, Any] = {
        name: value if name == "key" else {KNOB: value} for name, value in limits.items() if name != "max_cost"
    }
    if "max_cost" in limits:
        given["max_cost"] = work.cost({KNOB: limits["max_cost"]})

    def forecast(knobs: Knobs) -> tuple[float, float]:
        return queue_s, MEASURED[int(knobs[KNOB])][1]

    asked = parse_request({"inputs": ["a"] * texts, **fields}, model).asked
    return plan(model, asked, Limits(**given), loaded(work, level, forecast))


ESCALATE = {"escalate": True, "min_agreement": 0.9}
IDLE, BUSY = 0.0, 1.0


@pytest.mark.parametrize(
    ("fields", "limits", "level", "hashes", "by"),
    [
        # 1 default, 2 caller
        ({KNOB: 64}, {}, IDLE, 64, "caller"),
        ({}, {}, IDLE, DEFAULT, "default"),
        # ceilings beside 1 and 2
        ({KNOB: 16}, {"ceilings": 16}, IDLE, 16, "caller"),
        ({}, {"ceilings": 16}, IDLE, 16, "default"),
        ({}, {"ceilings": 64}, IDLE, DEFAULT, "default"),
        # 4 escalate beside 2, ceilings and 7
        (ESCALATE, {}, IDLE, 16, "escalation"),
        (ESCALATE | {KNOB: 4}, {}, IDLE, 4, "escalation"),
        (ESCALATE | {"min_agreement": 1}, {}, IDLE, 0, "escalation"),
        (ESCALATE | {"min_agreement": 0.999}, {"ceilings": 256}, IDLE, 256, "escalation"),
        (ESCALATE, {"ceilings": 8}, IDLE, 4, "escalation"),
        (ESCALATE, {"max_cost": 8}, IDLE, 4, "escalation"),
        (ESCALATE, {"ceilings": 3}, IDLE, 3, "escalation"),
        # 5 min_agreement beside ceilings and 7
        ({"min_agreement": 0.99}, {}, IDLE, 64, "goal"),
        ({"min_agreement": 1}, {}, IDLE, 0, "goal"),
        ({"min_agreement": 0.99}, {"ceilings": 64}, IDLE, 64, "goal"),
        ({"min_agreement": 0.99}, {"max_cost": 64}, IDLE, 64, "goal"),
        # 6 max_latency_ms beside ceilings, 5 and 7
        ({"max_latency_ms": 500}, {}, IDLE, 256, "goal"),
        ({"max_latency_ms": 1}, {}, IDLE, 4, "goal"),
        ({"max_latency_ms": 500}, {"ceilings": 100}, IDLE, 64, "goal"),
        ({"max_latency_ms": 500}, {"ceilings": 3}, IDLE, 3, "goal"),
        ({"max_latency_ms": 500}, {"max_cost": 100}, IDLE, 64, "goal"),
        ({"max_latency_ms": 500, "min_agreement": 0.9}, {}, IDLE, 256, "goal"),
        ({"max_latency_ms": 500, "min_agreement": 0.99}, {"ceilings": 64}, IDLE, 64, "goal"),
        # 7 max cost beside 1, 2 and ceilings
        ({KNOB: 64}, {"max_cost": 64}, IDLE, 64, "caller"),
        ({}, {"max_cost": DEFAULT}, IDLE, DEFAULT, "default"),
        ({}, {"max_cost": 20, "ceilings": 16}, IDLE, 16, "default"),
        # 8 load: degradable_to beside each
        ({KNOB: 64, "degradable_to": {KNOB: 8}}, {}, IDLE, 64, "caller"),
        ({KNOB: 64, "degradable_to": {KNOB: 8}}, {}, BUSY, 8, "brownout"),
        ({"degradable_to": {KNOB: 8}}, {}, BUSY, 8, "brownout"),
        ({"degradable_to": {KNOB: 8}}, {"ceilings": 16}, BUSY, 8, "brownout"),
        ({"degradable_to": {KNOB: 24}}, {"ceilings": 16}, BUSY, 16, "default"),
        (ESCALATE | {"degradable_to": {KNOB: 4}}, {}, BUSY, 16, "escalation"),
        ({"min_agreement": 0.99, "degradable_to": {KNOB: 4}}, {}, BUSY, 64, "goal"),
        ({"max_latency_ms": 500, "degradable_to": {KNOB: 4}}, {}, BUSY, 4, "brownout"),
        ({"max_latency_ms": 500, "degradable_to": {KNOB: 400}}, {}, BUSY, 256, "goal"),
        ({"max_latency_ms": 500, "min_agreement": 0.9, "degradable_to": {KNOB: 4}}, {}, BUSY, 256, "goal"),
        ({KNOB: 64, "degradable_to": {KNOB: 8}}, {"max_cost": 64}, BUSY, 8, "brownout"),
        # 8 load: brownout_to beside each
        ({}, {"brownout_to": 4}, IDLE, DEFAULT, "default"),
        ({}, {"brownout_to": 4}, BUSY, 4, "brownout"),
        ({KNOB: 64}, {"brownout_to": 4}, BUSY, 64, "caller"),
        ({}, {"brownout_to": 4, "ceilings": 16}, BUSY, 4, "brownout"),
        ({}, {"brownout_to": 24, "ceilings": 16}, BUSY, 16, "default"),
        (ESCALATE, {"brownout_to": 4}, BUSY, 16, "escalation"),
        ({"min_agreement": 0.99}, {"brownout_to": 4}, BUSY, 64, "goal"),
        ({"max_latency_ms": 500}, {"brownout_to": 4}, BUSY, 256, "goal"),
        ({}, {"brownout_to": 4, "max_cost": DEFAULT}, BUSY, 4, "brownout"),
        ({"degradable_to": {KNOB: 8}}, {"brownout_to": 4}, BUSY, 8, "brownout"),
        ({"degradable_to": {}}, {"brownout_to": 4}, BUSY, DEFAULT, "default"),
    ],
)
def test_a_row_has_the_last_word_on_what_those_above_leave_open(
    model: Model, fields: dict[str, Any], limits: dict[str, Any], level: float, hashes: int, by: str
) -> None:
    decided = decide(model, fields, limits, level)
    assert (decided.knobs, decided.by) == ({KNOB: hashes}, by)


@pytest.mark.parametrize("floor", [{"degradable_to": {KNOB: 8}}, {"degradable_to": {KNOB: 43}}])
@pytest.mark.parametrize("hashes", [0, 44, 64, 256])
@pytest.mark.parametrize("level", [0.1, 0.2, 0.5, 1.0])
def test_load_lowers_only_to_what_costs_less_with_the_draws_of_explained_answers(
    model: Model, floor: dict[str, Any], hashes: int, level: float
) -> None:
    """Few samples draw with all of them, many with a fourth, and an exact answer draws none."""
    decided = decide(model, {KNOB: hashes, "explain": True} | floor, {"max_cost": hashes}, level)
    work = Work(model, [TOKENS], explained=True)
    assert decided.by == "caller" or work.cost(decided.knobs) < work.cost({KNOB: hashes})


def test_an_explained_answer_is_not_lowered_to_draws_that_cost_more(model: Model) -> None:
    asked = {KNOB: 44, "degradable_to": {KNOB: 43}}
    assert decide(model, asked, {}, BUSY).by == "brownout"
    work = Work(model, [TOKENS], explained=True)
    dearer = next(each for each in range(512, 1, -1) if work.cost({KNOB: each - 1}) > work.cost({KNOB: each}))
    asked = {KNOB: dearer, "degradable_to": {KNOB: dearer - 1}}
    assert decide(model, asked, {}, BUSY).by == "brownout"
    assert decide(model, asked | {"explain": True}, {}, BUSY).by == "caller"


@pytest.fixture(scope="module")
def with_goal(model: Model) -> Model:
    """The same model with a default goal, which 16 hashes keep and 4 do not, of its measured settings."""
    return having(model, 0.98)


def having(model: Model, default_agreement: float | None) -> Model:
    other = copy.copy(model)
    assert model.calibration
    other.calibration = model.calibration.model_copy(update={"default_agreement": default_agreement})
    return other


@pytest.mark.parametrize(
    ("fields", "limits", "level", "hashes", "by"),
    [
        # 3 default goal alone, and not beside 2, 4, 5 or 6
        ({}, {}, IDLE, 16, "default"),
        ({"explain": True}, {}, IDLE, 16, "default"),
        ({"seed": 7, "top_k": 1}, {}, IDLE, 16, "default"),
        ({KNOB: 64}, {}, IDLE, 64, "caller"),
        ({KNOB: DEFAULT}, {}, IDLE, DEFAULT, "caller"),
        (ESCALATE | {"min_agreement": 1}, {}, IDLE, 0, "escalation"),
        (ESCALATE, {"ceilings": 3}, IDLE, 3, "escalation"),
        ({"min_agreement": 0.99}, {}, IDLE, 64, "goal"),
        ({"max_latency_ms": 500}, {}, IDLE, 256, "goal"),
        # 3 beside ceilings and 7: the most accurate setting of the frontier that is permitted, else as without the goal
        ({}, {"ceilings": 16}, IDLE, 16, "default"),
        ({}, {"ceilings": 8}, IDLE, 4, "default"),
        ({}, {"ceilings": 3}, IDLE, 3, "default"),
        ({}, {"max_cost": 16}, IDLE, 16, "default"),
        ({}, {"max_cost": 8}, IDLE, 4, "default"),
        ({}, {"max_cost": 64, "ceilings": 8}, IDLE, 4, "default"),
        # 3 beside 8
        ({}, {"brownout_to": 4}, IDLE, 16, "default"),
        ({}, {"brownout_to": 4}, BUSY, 4, "brownout"),
        ({}, {"brownout_to": 24}, BUSY, 16, "default"),
        ({}, {"brownout_to": 4, "ceilings": 8}, BUSY, 4, "default"),
        ({"degradable_to": {KNOB: 8}}, {}, IDLE, 16, "default"),
        ({"degradable_to": {KNOB: 8}}, {}, BUSY, 8, "brownout"),
        ({"degradable_to": {KNOB: 64}}, {}, BUSY, 16, "default"),
        ({"degradable_to": {}}, {"brownout_to": 4}, BUSY, 16, "default"),
    ],
)
def test_a_default_goal_chooses_for_requests_that_set_nothing(
    with_goal: Model, fields: dict[str, Any], limits: dict[str, Any], level: float, hashes: int, by: str
) -> None:
    decided = decide(with_goal, fields, limits, level)
    assert (decided.knobs, decided.by) == ({KNOB: hashes}, by)
    assert [type(value) for value in decided.knobs.values()] == [int]


@pytest.mark.parametrize(("goal", "hashes"), [(1, 0), (0.9985, 0), (0.998, 256), (0.985, 16), (0.5, 4)])
def test_the_default_goal_is_compared_with_an_estimate(model: Model, goal: float, hashes: int) -> None:
    """Not with the lower bound: 998 of 1,000 show 0.998."""
    assert decide(having(model, goal), {}, {}, IDLE).knobs == {KNOB: hashes}


def test_a_default_goal_of_a_rounded_bundle_that_even_the_exact_setting_misses_is_the_exact_setting(
    model: Model,
) -> None:
    rounded = having(model, 0.9995)  # above the mean of the exact setting and those that measured more by chance
    assert rounded.calibration
    exact, *others = rounded.calibration.settings
    missing = exact.model_copy(update={"agreement": others[2].agreement})  # 0.985
    rounded.calibration = rounded.calibration.model_copy(update={"reference": "1" * 64, "settings": [missing, *others]})
    assert decide(rounded, {}, {}, IDLE).knobs == {KNOB: 0}
    assert rounded.calibration.expected_agreement({KNOB: 0}, TOKENS) == 0.985


def test_a_default_goal_that_no_cost_permits_is_refused_as_a_default_is(with_goal: Model) -> None:
    with pytest.raises(InvalidRequest, match="the predicted cost is") as caught:
        decide(with_goal, {}, {"max_cost": 2}, IDLE)
    assert caught.value.param == KNOB


@pytest.mark.parametrize("calibrated", [True, False], ids=["calibrated", "not calibrated"])
@pytest.mark.parametrize(
    ("fields", "limits", "level", "hashes", "by"),
    [
        ({}, {}, IDLE, 0, "default"),
        ({KNOB: 64}, {}, IDLE, 64, "caller"),
        ({}, {"ceilings": 16}, IDLE, 16, "default"),
        ({}, {"brownout_to": 4}, BUSY, 4, "brownout"),
        ({"degradable_to": {KNOB: 400}}, {}, BUSY, 400, "brownout"),
    ],
)
def test_an_operator_may_make_exact_the_default(
    with_goal: Model,
    calibrated: bool,
    fields: dict[str, Any],
    limits: dict[str, Any],
    level: float,
    hashes: int,
    by: str,
) -> None:
    exact = copy.copy(with_goal)
    exact.knobs, exact.calibration = exact_by_default(exact.knobs, with_goal.calibration if calibrated else None)
    decided = decide(exact, fields, limits, level)
    assert (decided.knobs, decided.by) == ({KNOB: hashes}, by)
    assert decide(with_goal, {}, {}, IDLE).knobs == {KNOB: 16}, "another model with the same manifest"


@pytest.mark.parametrize(
    ("fields", "limits", "queue_s", "kind", "param"),
    [
        # ceilings beside 2 and 4
        ({KNOB: 64}, {"ceilings": 16}, 0.0, KnobOutOfRange, KNOB),
        (ESCALATE | {KNOB: 64}, {"ceilings": 16}, 0.0, KnobOutOfRange, KNOB),
        # 4 at a probability that only the exact setting has, beside ceilings and 7
        (ESCALATE | {"min_agreement": 0.9999}, {"ceilings": 256}, 0.0, GoalOutOfReach, "min_agreement"),
        (ESCALATE | {"min_agreement": 0.9999, KNOB: 64}, {"ceilings": 256}, 0.0, GoalOutOfReach, "min_agreement"),
        (ESCALATE | {"min_agreement": 1}, {"max_cost": 64}, 0.0, GoalOutOfReach, "min_agreement"),
        # goals beside 3, 7 and each other
        ({"min_agreement": 0.99}, {"ceilings": 16}, 0.0, GoalOutOfReach, "min_agreement"),
        ({"min_agreement": 0.99}, {"max_cost": 16}, 0.0, GoalOutOfReach, "min_agreement"),
        ({"max_latency_ms": 500}, {"max_cost": 3}, 0.0, GoalOutOfReach, "max_latency_ms"),
        ({"max_latency_ms": 500, "min_agreement": 1}, {}, 0.0, GoalOutOfReach, "max_latency_ms"),
        ({"max_latency_ms": 500, "min_agreement": 0.99}, {}, 9.0, Overloaded, None),
        ({"max_latency_ms": 5000, "min_agreement": 0.99}, {"ceilings": 16}, 0.0, GoalOutOfReach, "min_agreement"),
        # 7 beside 1, 2 and 4, and before 8
        ({KNOB: 64}, {"max_cost": 16}, 0.0, InvalidRequest, KNOB),
        ({}, {"max_cost": 16}, 0.0, InvalidRequest, KNOB),
        (ESCALATE, {"max_cost": 2}, 0.0, InvalidRequest, KNOB),
        ({KNOB: 64, "degradable_to": {KNOB: 8}}, {"max_cost": 16}, 0.0, InvalidRequest, KNOB),
        ({}, {"max_cost": 16, "brownout_to": 8}, 0.0, InvalidRequest, KNOB),
        # what contradicts itself
        ({KNOB: 64, "min_agreement": 0.9}, {}, 0.0, InvalidRequest, "min_agreement"),
        ({KNOB: 64, "max_latency_ms": 9}, {}, 0.0, InvalidRequest, "max_latency_ms"),
        ({"escalate": True}, {}, 0.0, InvalidRequest, "escalate"),
        (ESCALATE | {"max_latency_ms": 9}, {}, 0.0, InvalidRequest, "max_latency_ms"),
        ({KNOB: 64, "degradable_to": {KNOB: 65}}, {}, 0.0, KnobOutOfRange, "degradable_to.num_hashes"),
        ({"degradable_to": {KNOB: 33}}, {}, 0.0, KnobOutOfRange, "degradable_to.num_hashes"),
    ],
)
def test_what_cannot_be_kept_together_is_refused_by_name(
    model: Model,
    fields: dict[str, Any],
    limits: dict[str, Any],
    queue_s: float,
    kind: type[InvalidRequest | Overloaded],
    param: str | None,
) -> None:
    with pytest.raises(kind) as caught:
        decide(model, fields, limits, BUSY, queue_s)
    assert type(caught.value) is kind
    assert getattr(caught.value, "param", None) == param


@pytest.mark.parametrize("goal", ["min_agreement", "max_latency_ms"])
def test_a_goal_without_calibration_is_refused(models: dict[str, Model], goal: str) -> None:
    with pytest.raises(NotCalibrated):
        decide(models["yoso"], {goal: 0.9}, {}, IDLE)


@pytest.mark.parametrize("fields", [{"min_agreement": 0.99}, {}], ids=["goal", "default"])
def test_the_longest_input_chooses_for_all(models: dict[str, Model], fields: dict[str, Any]) -> None:
    """Short texts keep the goal with 4 hashes, long ones with 64."""
    model = copy.copy(models["yoso"])
    agreeing = [({KNOB: 0}, [1000, 1000]), ({KNOB: 64}, [997, 997]), ({KNOB: 4}, [997, 500])]
    content = calibration(model.manifest.revision, [100, 8192], agreeing, default_agreement=0.99)
    model.calibration = parsed(content)
    asked = parse_request({"inputs": ["a", "b", "c"], **fields}, model).asked
    for tokens, hashes in (([10, TOKENS, 10], 64), ([TOKENS, 10, 10], 64), ([10, 10, 10], 4)):
        assert plan(model, asked, Limits(), loaded(Work(model, tokens), IDLE)).knobs == {KNOB: hashes}


def test_only_what_may_be_lowered_asks_for_the_level_once(model: Model) -> None:
    asked_for: list[Knobs] = []

    def finds_room(knobs: Knobs) -> bool:
        asked_for.append(knobs)
        return True

    load = replace(loaded(Work(model, [TOKENS]), 0.5), finds_room=finds_room)
    for fields in ({KNOB: 64}, {"min_agreement": 0.9, "degradable_to": {KNOB: 4}}, {"degradable_to": {}}):
        plan(model, parse_request({"inputs": "a", **fields}, model).asked, Limits(), load)
    assert asked_for == []
    assert load.level().value == 0.0
    lowered = plan(model, parse_request({"inputs": "a", "degradable_to": {KNOB: 4}}, model).asked, Limits(), load)
    assert asked_for == [{KNOB: DEFAULT}]
    assert 4 < lowered.knobs[KNOB] < DEFAULT
    assert lowered.unlowered == {KNOB: DEFAULT}


def test_what_finds_no_room_is_lowered_to_its_floors(model: Model) -> None:
    asked = parse_request({"inputs": "a", "degradable_to": {KNOB: 4}}, model).asked
    load = loaded(Work(model, [TOKENS]), IDLE)
    assert plan(model, asked, Limits(), load).knobs == {KNOB: DEFAULT}
    assert plan(model, asked, Limits(), replace(load, finds_room=lambda knobs: False)).knobs == {KNOB: 4}


def test_before_the_lengths_are_known_a_plan_has_the_knobs_within_ceilings_and_the_floors(
    model: Model, with_goal: Model
) -> None:
    asked = parse_request({"inputs": "a", "degradable_to": {KNOB: 8}}, model).asked
    early = plan(model, asked, Limits({KNOB: 16}, "k", max_cost=1e-9))
    assert (early.knobs, early.by, early.floors) == ({KNOB: 16}, "default", {KNOB: 8})
    asked = parse_request({"inputs": "a"}, with_goal).asked
    assert plan(with_goal, asked, Limits()).knobs == {KNOB: DEFAULT}, "a goal needs the lengths"
    with pytest.raises(KnobOutOfRange, match="for the API key 'k'"):
        plan(model, parse_request({"inputs": "a", KNOB: 64}, model).asked, Limits({KNOB: 16}, "k"))
