"""Which knobs a goal chooses, without a server: by agreement, by predicted time, by both; and what is refused."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from calibrations import calibration, parsed

from attenuator.errors import GoalOutOfReach, InvalidRequest, NotCalibrated, Overloaded
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model
from attenuator.runtime.request import check_goals
from attenuator.serve.accuracy.goals import Circumstances, knobs_for
from attenuator.serve.accuracy.plan import Limits, plan
from attenuator.serve.api.schema import parse_request

SHORT, LONG = 100, 4000
# Agreeing texts of 1,000, up to 512 tokens and above.
SETTINGS = [
    ({"num_hashes": 0}, (1000, 1000)),
    ({"num_hashes": 256}, (999, 998)),
    ({"num_hashes": 64}, (990, 997)),
    ({"num_hashes": 16}, (950, 985)),
    ({"num_hashes": 4}, (800, 960)),
]
RUN_S = {0: 1.0, 256: 0.4, 64: 0.2, 16: 0.1, 4: 0.05}


@pytest.fixture(scope="module")
def calibrated(models: dict[str, Model]) -> Model:
    model = copy.copy(models["yoso"])
    model.calibration = parsed(calibration(model.manifest.revision, [512, 8192], SETTINGS))
    return model


def busy(queue_s: float) -> Callable[[Mapping[str, KnobValue]], tuple[float, float]]:
    return lambda knobs: (queue_s, RUN_S[int(knobs["num_hashes"])])


def chosen(model: Model, tokens: int = LONG, elapsed_s: float = 0.0, queue_s: float = 0.0, **goals: float) -> KnobValue:
    now = Circumstances(tokens, elapsed_s, busy(queue_s), lambda knobs: True)
    knobs = knobs_for(model, now, **goals)
    assert isinstance(knobs["num_hashes"], int)
    return knobs["num_hashes"]


@pytest.mark.parametrize(
    ("min_agreement", "short", "long"),
    [(1, 0, 0), (1.0, 0, 0), (0.9999, 0, 0), (0.99, 256, 64), (0.98, 64, 64), (0.93, 16, 4), (0.5, 4, 4), (1e-9, 4, 4)],
)
def test_an_agreement_chooses_the_cheapest_setting_whose_bound_reaches_it(
    calibrated: Model, min_agreement: float, short: int, long: int
) -> None:
    assert (
        chosen(calibrated, SHORT, min_agreement=min_agreement),
        chosen(calibrated, min_agreement=min_agreement),
    ) == (
        short,
        long,
    )


def test_a_goal_above_what_rounding_keeps_is_refused(models: dict[str, Model]) -> None:
    model = copy.copy(models["yoso"])
    settings = [({"num_hashes": 0}, [970]), ({"num_hashes": 64}, [950])]
    model.calibration = parsed(calibration(model.manifest.revision, [8192], settings, reference="1" * 64))
    assert [chosen(model, min_agreement=goal) for goal in (0.9, 0.95)] == [64, 0]
    assert chosen(model, max_latency_ms=2000) == 0
    for goals in ({"min_agreement": 0.99}, {"min_agreement": 0.99, "max_latency_ms": 2000}):
        with pytest.raises(GoalOutOfReach, match="970 of 1000 answers") as refusal:
            chosen(model, **goals)
        assert refusal.value.param == "min_agreement"


def test_the_choice_changes_where_a_bucket_ends(calibrated: Model) -> None:
    lengths = [1, 512, 513, 8192, 100_000]
    assert [chosen(calibrated, tokens, min_agreement=0.99) for tokens in lengths] == [256, 256, 64, 64, 64]


def test_nothing_behind_a_setting_that_fails_is_chosen(models: dict[str, Model]) -> None:
    """The walk ends there: what lies behind passed by chance."""
    model = copy.copy(models["yoso"])
    settings = [({"num_hashes": 0}, [1000]), ({"num_hashes": 64}, [900]), ({"num_hashes": 16}, [999])]
    model.calibration = parsed(calibration(model.manifest.revision, [8192], settings))
    assert chosen(model, min_agreement=0.95) == 0


def test_a_bucket_has_settings_of_its_own(models: dict[str, Model]) -> None:
    """On short texts an approximation may be slower than the exact value: it is not on their frontier."""
    model = copy.copy(models["yoso"])
    content = calibration(model.manifest.revision, [512, 8192], SETTINGS)
    content["buckets"][0]["frontier"] = [0]
    content["buckets"][1]["frontier"] = [0, 2, 4]
    model.calibration = parsed(content)
    assert [chosen(model, tokens, min_agreement=0.9) for tokens in (SHORT, LONG)] == [0, 4]
    assert [chosen(model, tokens, max_latency_ms=300) for tokens in (SHORT, LONG)] == [0, 64]


@pytest.mark.parametrize(
    ("max_latency_ms", "queue_s", "elapsed_s", "expected"),
    [
        (1000, 0.0, 0.0, 0),
        (999, 0.0, 0.0, 256),
        (1000, 0.1, 0.0, 256),
        (1000, 0.0, 0.1, 256),
        (1000, 0.85, 0.05, 16),
        (60, 0.0, 0.0, 4),
    ],
)
def test_a_latency_chooses_the_most_accurate_setting_that_is_in_time(
    calibrated: Model, max_latency_ms: float, queue_s: float, elapsed_s: float, expected: int
) -> None:
    assert chosen(calibrated, LONG, elapsed_s, queue_s, max_latency_ms=max_latency_ms) == expected


def test_the_fastest_runs_where_none_is_in_time(calibrated: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(calibrated, max_latency_ms=1) == 4
    assert chosen(calibrated, queue_s=9.0, max_latency_ms=1000) == 4
    monkeypatch.setitem(RUN_S, 16, 0.01)  # here not the cheapest one by calibration
    assert chosen(calibrated, max_latency_ms=1) == 16


def test_of_both_goals_the_latency_chooses(calibrated: Model) -> None:
    both = {"max_latency_ms": 500, "min_agreement": 0.9}
    assert chosen(calibrated, **both) == 256, "though the agreement alone would choose 4"
    assert chosen(calibrated, queue_s=0.25, **both) == 64
    assert chosen(calibrated, max_latency_ms=5000, min_agreement=1) == 0


@pytest.mark.parametrize("queue_s", [0.0, 50.0])
def test_goals_that_contradict_each_other_are_refused_whatever_the_load(calibrated: Model, queue_s: float) -> None:
    with pytest.raises(GoalOutOfReach) as caught:
        chosen(calibrated, queue_s=queue_s, max_latency_ms=150, min_agreement=0.99)
    assert (caught.value.param, caught.value.allowed) == ("max_latency_ms", "about 200 or more with min_agreement 0.99")
    for part in ("min_agreement 0.99 takes about 200 ms here", "num_hashes 64", "max_latency_ms is 150"):
        assert part in str(caught.value)
    with pytest.raises(GoalOutOfReach, match="num_hashes 4"):
        chosen(calibrated, queue_s=queue_s, max_latency_ms=1, min_agreement=0.5)
    with pytest.raises(GoalOutOfReach, match="num_hashes 0"):
        chosen(calibrated, queue_s=queue_s, max_latency_ms=500, min_agreement=1)


def test_goals_that_only_the_load_keeps_apart_are_to_be_tried_again(calibrated: Model) -> None:
    with pytest.raises(Overloaded, match="waits 7000 ms") as caught:
        chosen(calibrated, elapsed_s=0.05, queue_s=7.0, max_latency_ms=500, min_agreement=0.99)
    assert caught.value.retry_after_s == pytest.approx(0.05 + 7.0 + 0.2 - 0.5)
    for part in ("the service is overloaded", "num_hashes 64", "try again in 7 s"):
        assert part in str(caught.value)


def test_only_what_the_caller_may_have_is_chosen(calibrated: Model) -> None:
    """Ceilings of an API key, and the limit on cost."""

    def at_most(ceiling: int, **goals: float) -> KnobValue:
        now = Circumstances(LONG, 0.0, busy(0.0), lambda knobs: 0 < knobs["num_hashes"] <= ceiling)
        return knobs_for(calibrated, now, **goals)["num_hashes"]

    assert at_most(64, max_latency_ms=5000) == 64
    assert at_most(64, min_agreement=0.99) == 64
    assert at_most(64, max_latency_ms=5000, min_agreement=0.99) == 64
    for goals in ({"min_agreement": 1}, {"min_agreement": 0.995, "max_latency_ms": 5000}):
        with pytest.raises(GoalOutOfReach, match="ceilings of the API key") as caught:
            at_most(64, **goals)
        assert caught.value.param == "min_agreement"
    with pytest.raises(GoalOutOfReach, match="takes num_hashes 4 or more accurate"):
        at_most(3, max_latency_ms=5000)


@pytest.mark.parametrize("name", ["min_agreement", "max_latency_ms"])
def test_goals_beside_knobs_or_without_calibration_are_refused(
    calibrated: Model, models: dict[str, Model], name: str
) -> None:
    def refused(model: Model, *knobs: str) -> Any:
        with pytest.raises(InvalidRequest) as caught:
            check_goals(model.manifest, model.calibration, {name: 0.5}, knobs)
        assert caught.value.param == name
        return caught.value

    assert "num_hashes" in str(refused(calibrated, "num_hashes"))
    missing = refused(models["yoso"])
    assert isinstance(missing, NotCalibrated)
    assert "attenuator calibrate" in str(missing)
    check_goals(calibrated.manifest, calibrated.calibration, {name: 0.5}, [])
    check_goals(models["yoso"].manifest, None, {}, ["num_hashes"])


def test_a_brownout_leaves_a_goal_alone_unless_its_caller_allows_it(calibrated: Model) -> None:
    def floors(**fields: Any) -> Mapping[str, KnobValue]:
        asked = parse_request({"inputs": "text", **fields}, calibrated).asked
        return plan(calibrated, asked, Limits(brownout_to={"num_hashes": 4})).floors

    assert floors() == {"num_hashes": 4}
    for goal in ({"min_agreement": 0.9}, {"max_latency_ms": 9}):
        assert floors(**goal) == {}
    assert floors(min_agreement=0.9, degradable_to={"num_hashes": 8}) == {}, "the agreement is a floor of its own"
    for floor in (8, 400):  # 400 is above the default: knobs are chosen later
        assert floors(max_latency_ms=9, degradable_to={"num_hashes": floor}) == {"num_hashes": floor}
