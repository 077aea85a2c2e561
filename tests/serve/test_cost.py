"""The limit on predicted cost, without a server."""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest
from attenuator.ops import KNOBS
from attenuator.ops.cost import NodeShape
from attenuator.ops.kept_lengths.spec import SPEC
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model, Row
from attenuator.runtime.cost import CostModel
from attenuator.runtime.explaining import cost_of_rows
from attenuator.runtime.work import Stage
from attenuator.runtime.work import Work as ModelWork
from attenuator.serve.accuracy.cost import Work, cheapest_first, fitting_settings

TOKENS = 160  # enough for MCA to sample, few enough for it to pay in so narrow a model
# model, knob, a value that is too expensive, one that just fits, tokens at which the exact value does not
CASES = [("yoso", "num_hashes", 500, 77, 2000), ("mca", "alpha", 0.3, 0.47, TOKENS)]


@pytest.mark.parametrize(("kind", "knob", "dear", "fitting", "tokens"), CASES)
def test_settings_that_fit_are_named(
    models: dict[str, Model], kind: str, knob: str, dear: float, fitting: float, tokens: int
) -> None:
    model = models[kind]
    limit = model.predict_cost(tokens, {knob: fitting}) / 1e9
    Work(model, [tokens]).check_cost({knob: fitting}, limit)
    with pytest.raises(InvalidRequest) as caught:
        Work(model, [tokens]).check_cost({knob: dear}, limit)
    assert caught.value.param == knob
    named = re.search(
        rf"cheapest setting that fits is {knob} ([\d.]+), the most accurate {knob} ([\d.]+)", str(caught.value)
    )
    assert named, str(caught.value)
    cheapest, best = float(named[1]), float(named[2])
    assert best == pytest.approx(fitting)
    for value in (cheapest, best):
        Work(model, [tokens]).check_cost({knob: value}, limit)
    row = model.knobs.rows[knob]
    assert cheapest == (row.low + 1 if row.accuracy == "rises" else row.high)


def test_nothing_fits_where_no_knob_helps(models: dict[str, Model]) -> None:
    for kind, knobs in (("softmax", {}), ("mca", {"alpha": 1.0}), ("yoso", {"num_hashes": 1})):
        with pytest.raises(InvalidRequest, match="no setting fits"):
            Work(models[kind], [TOKENS]).check_cost(knobs, 1e-6)
        Work(models[kind], [TOKENS]).check_cost(knobs, None)


@pytest.mark.parametrize("kind", ["yoso", "mca"])
def test_cost_rises_along_the_settings(models: dict[str, Model], kind: str) -> None:
    [row] = models[kind].knobs.rows.values()
    settings = cheapest_first(row)
    assert row.exact not in settings
    costs = [models[kind].predict_cost(TOKENS, {row.name: value}) for value in settings]
    assert costs == sorted(costs)
    assert len(set(costs)) > 50


ATTRIBUTES: dict[str, int | float | str] = {"queries": "all", "window": 0, "estimator": "sampled"}
MCA = NodeShape("mca", 2, 64, 64, 128, ATTRIBUTES)
SELECTION = NodeShape("kept_lengths", 0, 0, 0, 0, SPEC.filled({}), 1)
# A layer of every token, then one of those that are kept.
TWO_KNOBS = CostModel(
    ModelWork([Stage(operators=[MCA], token_macs=130_000), Stage(SELECTION, operators=[MCA], token_macs=130_000)])
)
ROWS = [BundleKnob.model_validate(KNOBS[name], from_attributes=True) for name in ("alpha", "keep")]
DEAR: dict[str, KnobValue] = {"alpha": 0.1, "keep": 1.0}


def cost_of_two(setting: dict[str, KnobValue]) -> float:
    return TWO_KNOBS.predict(300, setting)


@pytest.mark.parametrize("limit", [0.6, 0.75, 0.99])
def test_of_two_knobs_the_one_that_saves_most_is_named(limit: float) -> None:
    most = cost_of_two(DEAR) * limit
    room = fitting_settings(cost_of_two, DEAR, ROWS, most)
    assert room is not None
    assert (room.knob, room.cheapest, room.others) == ("keep", 0.05, {})
    assert cost_of_two({**DEAR, "keep": room.best}) <= most < cost_of_two({**DEAR, "keep": room.best + 0.02})


def test_a_second_knob_changes_where_the_first_alone_does_not_do() -> None:
    cheapest = cost_of_two({"alpha": 1.0, "keep": 0.05})
    most = (cheapest + cost_of_two({**DEAR, "keep": 0.05})) / 2
    room = fitting_settings(cost_of_two, DEAR, ROWS, most)
    assert room is not None
    assert (room.knob, room.cheapest, room.others) == ("keep", 0.05, {"alpha": 1.0})
    assert 0.05 < room.best < 0.2
    assert cost_of_two({"alpha": 1.0, "keep": room.best}) <= most
    assert fitting_settings(cost_of_two, DEAR, ROWS, cheapest - 1) is None


def test_a_knob_that_is_at_its_cheapest_is_not_named() -> None:
    knobs: dict[str, KnobValue] = {"alpha": 0.1, "keep": 0.05}
    room = fitting_settings(cost_of_two, knobs, ROWS, cost_of_two({**knobs, "alpha": 0.5}))
    assert room is not None
    assert (room.knob, room.best, room.others) == ("alpha", 0.5, {})


FEATURES = [BundleKnob.model_validate(KNOBS["num_features"], from_attributes=True)]
# A text's own cost at 1 feature and exactly, what a feature adds, and what the draws of a seed add for each.
TEXT, EXACT_TEXT, FEATURE, DRAWN = 100.0, 300.0, 1.0, 50.0


def cost_of_features(setting: Mapping[str, KnobValue], drawn: float = DRAWN) -> float:
    count = setting["num_features"]
    return TEXT + count * (FEATURE + drawn) if count else EXACT_TEXT


@pytest.mark.parametrize(
    ("most", "drawn", "cheapest", "best", "sampled"),
    [
        (1000.0, DRAWN, 1, 0, (1, 17)),  # 17 features fit a fresh seed, and so does the exact value
        (310.0, 250.0, 0, 0, ()),  # the draws of a single feature take more than exact attention
        (290.0, DRAWN, 1, 3, (1, 3)),
        (140.0, DRAWN, None, None, None),
    ],
)
def test_the_exact_value_is_advised_where_it_fits(
    most: float, drawn: float, cheapest: int | None, best: int | None, sampled: tuple[int, ...] | None
) -> None:
    cost = partial(cost_of_features, drawn=drawn)
    room = fitting_settings(cost, {"num_features": 256}, FEATURES, most)
    named = (None, None, None) if room is None else (room.cheapest, room.best, room.sampled)
    assert named == (cheapest, best, sampled)
    assert all(
        cost({"num_features": value}) <= most for value in (cheapest, best, *(sampled or ())) if value is not None
    )


def test_the_sentence_on_cost_names_the_exact_value(models: dict[str, Model]) -> None:
    """16 tokens take less exactly than with 100 hashes; the fresh seed of a request costs them once more."""
    model = models["yoso"]
    work = Work(model, [16], seed=7, usual_seed=False)
    limit = 1.01 * model.predict_cost(16, {"num_hashes": 0}) / 1e9
    with pytest.raises(InvalidRequest, match="the most accurate num_hashes 0") as caught:
        work.check_cost({"num_hashes": 100}, limit)
    assert (caught.value.allowed or "").startswith("num_hashes 0 (exact)")
    work.check_cost({"num_hashes": 0}, limit)


def test_shares_have_two_digits() -> None:
    assert cheapest_first(ROWS[1])[:3] == [0.05, 0.06, 0.07]
    assert cheapest_first(ROWS[1])[-1] == 0.99


def test_a_knob_with_one_value_has_no_other_setting() -> None:
    fixed = ROWS[1].model_copy(update={"low": 1.0, "default": 1.0})
    assert cheapest_first(fixed) == []
    assert cheapest_first(fixed.model_copy(update={"low": 0.5, "high": 0.5})) == [0.5]
    limit = 0.99 * cost_of_two(DEAR)
    named = fitting_settings(cost_of_two, DEAR, [ROWS[0], fixed], limit)
    assert named is not None
    assert named.knob == "alpha"
    assert fitting_settings(cost_of_two, DEAR, [fixed], limit) is None


@dataclass(frozen=True, slots=True)
class CountedCost(CostModel):
    """Keeps the lengths that were asked for, with the settings."""

    asked: list[tuple[int, tuple[tuple[str, float], ...]]] = field(default_factory=list)

    def predict(self, tokens: int, knobs: Mapping[str, float]) -> float:
        self.asked.append((tokens, tuple(knobs.items())))
        return CostModel.predict(self, tokens, knobs)


def test_a_length_is_predicted_once_however_many_rows_have_it(models: dict[str, Model]) -> None:
    """A request of 256 inputs has 1280 rows with its draws: one by one they took the event loop up to a second."""
    model = copy(models["mca"])
    model.cost = counted = CountedCost(model.cost.work)
    model._costs = {}
    work = Work(model, [TOKENS] * 256, explained=True)
    draws = work.draws({"alpha": 0.3})
    assert sum(len(lengths) for lengths, _ in draws) == 1024
    work.check_cost({"alpha": 0.3}, 1e9)
    settings = [{"alpha": 0.3}, *(setting for _, setting in draws if setting != {"alpha": 0.3})]
    assert sorted(counted.asked) == sorted((TOKENS, tuple(each.items())) for each in settings)
    assert model.total_cost([3, 5, 3], {}) == 2 * counted.predict(3, {}) + counted.predict(5, {})
    counted.asked.clear()
    ids = np.zeros(TOKENS + 1, dtype=np.int64)
    rows = [Row(ids, ids, {"alpha": alpha}, 0) for alpha in (0.3, 0.5) * 128]
    cost = cost_of_rows(model, rows)
    assert len(counted.asked) == 2
    assert cost == pytest.approx(sum(model.predict_cost(TOKENS + 1, row.knobs) for row in rows))


def test_every_setting_between_those_named_fits_though_many_samples_are_explained_more_cheaply_than_few(
    models: dict[str, Model],
) -> None:
    """Draws of a fourth of the samples begin at 32: between 20 and 31 an explained answer costs more than at 32."""
    model, tokens, knob = models["yoso"], 4000, "num_hashes"

    work = Work(model, [tokens], explained=True)

    def cost(value: int) -> float:
        return 1e9 * work.cost({knob: value})

    assert cost(32) < cost(31)
    for limit in (cost(32), cost(24), cost(40)):
        with pytest.raises(InvalidRequest) as caught:
            work.check_cost({knob: 512}, limit / 1e9)
        named = re.search(r"from (\d+) to (\d+)", str(caught.value.allowed))
        assert named, str(caught.value)
        assert all(cost(value) <= limit for value in range(int(named[1]), int(named[2]) + 1))
