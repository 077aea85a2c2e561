"""Floors of a brownout: their checks, and the knobs between what was asked and the floor."""

import copy
from typing import Any

import pytest
from calibrations import calibration, parsed

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest, KnobOutOfRange, UnknownField
from attenuator.ops import KNOBS
from attenuator.ops.knobs import Knobs, KnobValue, accuracy_rank
from attenuator.runtime import KnobTable, Model
from attenuator.serve.accuracy.brownout import check_floors, knobs_at, lowered, policy_floors
from attenuator.serve.accuracy.plan import Limits, plan
from attenuator.serve.api.schema import parse_request
from attenuator.serve.settings import read_floors

ROWS = {name: BundleKnob.model_validate(KNOBS[name], from_attributes=True) for name in ("alpha", "num_hashes", "keep")}
TABLE = KnobTable("m", list(ROWS.values()))
ASKED: dict[str, KnobValue] = {"alpha": 0.2, "num_hashes": 64, "keep": 1.0}


def cost(knobs: dict[str, KnobValue]) -> float:
    """Each knob has a part of the work; the exact value of hashes costs as much as 900 of them."""
    return 1e6 * (float(knobs["keep"]) + 0.5 * (1 - float(knobs["alpha"])) + (knobs["num_hashes"] or 900) / 100 + 0.1)


@pytest.mark.parametrize(
    ("raw", "kind", "param", "says"),
    [
        (
            {"hashes": 8},
            UnknownField,
            "degradable_to.hashes",
            f"one of its knobs: {' and '.join(ROWS)}",
        ),
        (
            {"num_hashes": 513},
            KnobOutOfRange,
            "degradable_to.num_hashes",
            "513, must be a whole number from 0 to 512",
        ),
        ({"num_hashes": True}, KnobOutOfRange, "degradable_to.num_hashes", "is true, must be a whole number"),
        ({"keep": "0.5"}, KnobOutOfRange, "degradable_to.keep", "is a text, must be a number from 0.05 to 1"),
        ({"keep": None}, KnobOutOfRange, "degradable_to.keep", "is null, must be a number"),
        ({"keep": float("nan")}, KnobOutOfRange, "degradable_to.keep", "is nan, must be a number"),
        ({"num_hashes": 65}, KnobOutOfRange, "degradable_to.num_hashes", "at most as accurate as num_hashes 64"),
        ({"num_hashes": 0}, KnobOutOfRange, "degradable_to.num_hashes", "lower values are less accurate, 0 is exact"),
        ({"alpha": 0.1}, KnobOutOfRange, "degradable_to.alpha", "higher values are less accurate, 0 is exact"),
    ],
)
def test_wrong_floors_are_refused_by_name(
    raw: dict[str, object], kind: type[InvalidRequest], param: str, says: str
) -> None:
    with pytest.raises(kind) as caught:
        check_floors(raw, TABLE, ASKED)
    assert caught.value.param == param
    assert says in str(caught.value)
    assert str(caught.value).startswith(param)


def test_floors_may_equal_what_was_asked_and_are_typed() -> None:
    floors = check_floors({"num_hashes": 8.0, "keep": 1}, TABLE, ASKED)
    assert floors == {"num_hashes": 8, "keep": 1.0}
    assert isinstance(floors["num_hashes"], int)
    assert check_floors({}, TABLE, ASKED) == {}
    assert check_floors({"num_hashes": 0}, TABLE, None) == {"num_hashes": 0}


@pytest.mark.parametrize("asked", [{}, {"num_hashes": 0}, {"num_hashes": 512, "alpha": 0.0}, {"keep": 0.4}])
def test_a_higher_level_is_never_dearer_nor_beyond_a_floor(asked: dict[str, KnobValue]) -> None:
    asked, floors = ASKED | asked, {"num_hashes": 8, "keep": 0.333, "alpha": 0.77}
    settings = [lowered(list(ROWS.values()), asked, floors, step / 40, cost) for step in range(41)]
    assert settings[0] == asked
    assert settings[-1] == floors
    costs = [cost(setting) for setting in settings]
    assert costs == sorted(costs, reverse=True)
    assert len({tuple(setting.values()) for setting in settings}) > 20
    for before, after in zip(settings, settings[1:], strict=False):
        for name, row in ROWS.items():
            ranks = [accuracy_rank(row, value) for value in (asked[name], before[name], after[name], floors[name])]
            assert ranks == sorted(ranks, reverse=True)


def test_the_middle_of_the_way_is_the_geometric_mean_of_the_costs() -> None:
    setting = lowered([ROWS["num_hashes"]], ASKED | {"num_hashes": 0}, {"num_hashes": 8}, 0.5, cost)
    mean = (cost(ASKED | {"num_hashes": 0}) * cost(ASKED | {"num_hashes": 8})) ** 0.5
    assert cost(setting) <= mean < cost(setting | {"num_hashes": setting["num_hashes"] + 1})


def test_a_knob_that_spares_nothing_stays_as_asked() -> None:
    """On a short text, hashes cost more than the exact value."""
    dear = {0: 1.0, 512: 9.0, 8: 2.0}
    setting = lowered([ROWS["num_hashes"]], {"num_hashes": 0}, {"num_hashes": 8}, 1.0, lambda k: dear[k["num_hashes"]])
    assert setting == {"num_hashes": 0}
    assert lowered([ROWS["keep"]], {"keep": 0.5}, {"keep": 0.5}, 1.0, cost) == {"keep": 0.5}
    assert lowered([ROWS["keep"]], {"keep": 0.5}, {"keep": 0.8}, 1.0, cost) == {"keep": 0.5}, "a policy may be so"
    assert lowered([ROWS["keep"]], {"keep": 0.5}, {}, 1.0, cost) == {"keep": 0.5}


def test_a_policy_is_read_and_fitted_to_a_model() -> None:
    policy = read_floors(" keep=0.25, num_hashes=8 ,")
    assert policy == {"keep": 0.25, "num_hashes": 8}
    narrow = ROWS["num_hashes"].model_copy(update={"low": 16.0})
    assert policy_floors(policy, KnobTable("m", [narrow])) == {"num_hashes": 16}
    assert policy_floors(policy, KnobTable("m", [ROWS["alpha"]])) == {}
    assert read_floors("") == {}


@pytest.mark.parametrize(
    ("fields", "floors"),
    [
        ({}, {"num_hashes": 8}),
        ({"num_hashes": 64}, {}),
        ({"degradable_to": {}}, {}),
        ({"num_hashes": 64, "degradable_to": {"num_hashes": 16}}, {"num_hashes": 16}),
        ({"max_latency_ms": 50}, {}),
        ({"max_latency_ms": 50, "degradable_to": {"num_hashes": 4}}, {"num_hashes": 4}),
        ({"min_agreement": 0.9}, {}),
        ({"min_agreement": 0.9, "max_latency_ms": 50, "degradable_to": {"num_hashes": 4}}, {}),
    ],
)
def test_policy_and_request_say_who_is_lowered(
    models: dict[str, Model], fields: dict[str, Any], floors: dict[str, KnobValue]
) -> None:
    """A policy is for those who leave everything to the service; nobody goes below the agreement that was asked for."""
    model = copy.copy(models["yoso"])
    model.calibration = parsed(calibration(model.manifest.revision, [8192], [({"num_hashes": 0}, (1000,))]))
    request = parse_request({"inputs": "good film", **fields}, model)
    limits = Limits(brownout_to={"num_hashes": 8, "keep": 0.5})
    assert plan(model, request.asked, limits).floors == floors


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keep", "must be a knob's name and a number"),
        ("keep=x", "must be a knob's name and a number"),
        ("keep=0.01", "keep is 0.01, must be a number from 0.05 to 1"),
        ("num_hashes=8.5", "num_hashes is 8.5, must be a whole number"),
        (
            "hashes=8",
            f"'hashes' is no knob, must be one of: {', '.join(KNOBS)}",
        ),
        ("keep=0.5,keep=0.6", "'keep' is there twice"),
    ],
)
def test_a_policy_that_is_none_says_why(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_floors(text)


def test_each_of_several_floors_lowers_its_knob_as_if_it_were_alone() -> None:
    """Along the way from what was asked for: what one spares does not let the next one stay higher."""
    floors: dict[str, KnobValue] = {"alpha": 0.77, "num_hashes": 8, "keep": 0.1}
    rows = list(ROWS.values())

    def product(knobs: Knobs) -> float:
        return float(knobs["keep"]) ** 2 * (1.1 - float(knobs["alpha"])) * (10 + knobs["num_hashes"]) + knobs["keep"]

    together = lowered(rows, ASKED, floors, 0.5, product)
    alone = [lowered(rows, ASKED, {name: floor}, 0.5, product)[name] for name, floor in floors.items()]
    assert [together[name] for name in floors] == alone


def test_a_request_is_lowered_as_its_longest_input_needs(models: dict[str, Model]) -> None:
    """Hashes pay in long texts only: two tokens leave the exact value as it is."""
    model, asked, floors = models["yoso"], {"num_hashes": 0}, {"num_hashes": 8}
    short, long = (knobs_at(model, asked, floors, 0.5, [tokens]) for tokens in (2, 4000))
    assert short != long
    for tokens in ([2, 4000], [4000, 2]):
        assert knobs_at(model, asked, floors, 0.5, tokens) == long
