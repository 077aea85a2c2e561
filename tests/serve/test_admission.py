"""The limit on predicted cost, without a server."""

import re

import numpy as np
import pytest

from attenuator.errors import InvalidRequest
from attenuator.runtime import Encoded, Model
from attenuator.serve.admission import cheapest_first, check_cost

TOKENS = 160  # enough for MCA to sample, few enough for it to pay in so narrow a model
# model, knob, a value that is too expensive, one that just fits
CASES = [("yoso", "num_hashes", 500, 77), ("mca", "alpha", 0.3, 0.47)]


def encoded(tokens: int) -> list[Encoded]:
    ids = np.zeros(tokens, dtype=np.int64)
    return [Encoded(ids, ids)]


@pytest.mark.parametrize(("kind", "knob", "dear", "fitting"), CASES)
def test_settings_that_fit_are_named(
    models: dict[str, Model], kind: str, knob: str, dear: float, fitting: float
) -> None:
    model = models[kind]
    limit = model.predict_cost(TOKENS, {knob: fitting}) / 1e9
    check_cost(model, encoded(TOKENS), {knob: fitting}, limit)
    with pytest.raises(InvalidRequest) as caught:
        check_cost(model, encoded(TOKENS), {knob: dear}, limit)
    assert caught.value.param == knob
    named = re.search(
        rf"cheapest setting that fits is {knob} ([\d.]+), the most accurate {knob} ([\d.]+)", str(caught.value)
    )
    assert named, str(caught.value)
    cheapest, best = float(named[1]), float(named[2])
    assert best == pytest.approx(fitting)
    for value in (cheapest, best):
        check_cost(model, encoded(TOKENS), {knob: value}, limit)
    row = model.knobs.rows[knob]
    assert cheapest == (row.low + 1 if row.accuracy == "rises" else row.high)


def test_nothing_fits_where_no_knob_helps(models: dict[str, Model]) -> None:
    for kind, knobs in (("softmax", {}), ("mca", {"alpha": 1.0}), ("yoso", {"num_hashes": 1})):
        with pytest.raises(InvalidRequest, match="no setting fits"):
            check_cost(models[kind], encoded(TOKENS), knobs, 1e-6)
        check_cost(models[kind], encoded(TOKENS), knobs, None)


@pytest.mark.parametrize("kind", ["yoso", "mca"])
def test_cost_rises_along_the_settings(models: dict[str, Model], kind: str) -> None:
    [row] = models[kind].knobs.rows.values()
    settings = cheapest_first(row)
    assert row.exact not in settings
    costs = [models[kind].predict_cost(TOKENS, {row.name: value}) for value in settings]
    assert costs == sorted(costs)
    assert len(set(costs)) > 50
