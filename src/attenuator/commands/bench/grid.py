"""The settings and rates that `attenuator bench` runs at."""

from collections.abc import Mapping, Sequence
from itertools import product

from attenuator.api import ModelInfo

Setting = dict[str, float]

RATES_OF_CAPACITY = (0.5, 0.8, 1.0, 1.5)
MOST_SETTINGS = 5  # of a calibration's frontier, where none are chosen


def typed(model: ModelInfo, knobs: Setting) -> dict[str, float]:
    """A setting with whole numbers where a knob takes those alone."""
    whole = {knob.name for knob in model.knobs if knob.dtype == "int32"}
    return {name: int(value) if name in whole else value for name, value in knobs.items()}


def exact_of(model: ModelInfo) -> Setting:
    """The exact value of every knob."""
    return {knob.name: knob.exact for knob in model.knobs}


def settings_of(model: ModelInfo, chosen: Mapping[str, Sequence[float]]) -> list[Setting]:
    """The settings to run at, the exact one first.

    Args:
        model: that is asked.
        chosen: values by knob, of which every combination runs beside the defaults of the other knobs. Where it is
            empty, settings come from the calibration, evenly along its frontier for the longest texts, with what
            requests that set nothing run at; without one the default is compared with the exact setting.
    """
    defaults = {knob.name: knob.default for knob in model.knobs}
    if chosen:
        settings = [defaults | dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]
    elif model.calibration is not None:
        calibration = model.calibration
        frontier = [dict(calibration.settings[index].knobs) for index in calibration.buckets[-1].settings]
        step = max(1, -(-(len(frontier) - 1) // (MOST_SETTINGS - 1)))
        place = calibration.buckets[-1].default
        usual = defaults if place is None else dict(calibration.settings[place].knobs)
        settings = [*frontier[::step], *frontier[-1:], usual]
    else:
        settings = [defaults]
    unique: list[Setting] = []
    for setting in (exact_of(model), *settings):
        if setting not in unique:
            unique.append(setting)
    return unique


def planned_s(seconds: float, rates: int, settings: int) -> float:
    """Least time that a sweep takes."""
    return seconds * (1 + rates * settings)
