"""The grid of settings to measure."""

import pytest

from attenuator.bundle import BundleKnob
from attenuator.calibration.grid import grid, values


def knob(name: str = "knob", **fields: object) -> BundleKnob:
    row = {"dtype": "float", "default": 0.5, "low": 0.0, "high": 1.0, "exact": 0.0, "accuracy": "falls"}
    return BundleKnob.model_validate({"name": name, "unit": "", "doc": ""} | row | fields)


WHOLE = {"dtype": "int32", "default": 64.0, "low": 0.0, "high": 512.0, "exact": 0.0, "accuracy": "rises"}
SHARE = {"default": 0.05, "low": 0.05, "high": 1.0, "exact": 1.0, "accuracy": "rises"}


def test_whole_numbers_double_from_the_most_to_the_least_accurate() -> None:
    assert values(knob(**WHOLE), 8) == [0, 512, 256, 128, 64, 32, 16, 8, 4]


def test_a_default_between_the_steps_is_measured_too() -> None:
    assert values(knob(**WHOLE | {"default": 100.0}), 8) == [0, 512, 256, 128, 100, 64, 32, 16, 8, 4]


@pytest.mark.parametrize("high", [1.0, 2.0, 7.0])
def test_a_narrow_range_of_whole_numbers_has_each_value_once(high: float) -> None:
    found = values(knob(**WHOLE | {"default": 1.0, "high": high}), 8)
    assert found == [0, *sorted(set(found) - {0}, reverse=True)]
    assert all(value == int(value) and 0 <= value <= high for value in found)


def test_numbers_are_spread_to_the_end_that_is_not_exact_evenly_or_in_even_ratios() -> None:
    assert values(knob(), 5) == [0, 0.2, 0.4, 0.5, 0.6, 0.8, 1]
    assert values(knob(**SHARE), 5) == [1, 0.55, 0.3, 0.17, 0.09, 0.05]


def test_several_knobs_have_every_combination_of_fewer_values() -> None:
    rows = grid([knob("one", **SHARE), knob("two", default=0.2)])
    assert rows[0] == {"one": 1, "two": 0}
    assert {"one": 0.05, "two": 0.2} in rows  # the defaults
    assert len({tuple(row.items()) for row in rows}) == len(rows) == 5 * 6
    assert len(grid([knob(name) for name in ("one", "two", "three")])) == 3**3
