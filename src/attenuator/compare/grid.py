"""The settings of a bundle that are run: each knob alone, and all of them together, from exact to cheap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attenuator.bundle import BundleKnob
from attenuator.calibration.grid import values

Setting = dict[str, float]


def settings_of(knobs: Sequence[BundleKnob], count: int) -> list[Setting]:
    """The settings to run, the exact one first; each is there once.

    All combinations, as a calibration runs them, would be too many for every attention in every precision.

    Args:
        knobs: of the bundle.
        count: values of each knob beside its exact value and its default.
    """
    exact = {knob.name: knob.exact for knob in knobs}
    alone = [exact | {knob.name: value} for knob in knobs for value in values(knob, count)[1:]]
    spread = {knob.name: _spread(knob, count) for knob in knobs}
    together = [dict(zip(spread, row, strict=True)) for row in zip(*spread.values(), strict=False)]
    settings = [exact, *alone, *together, {knob.name: knob.default for knob in knobs}]
    return [setting for place, setting in enumerate(settings) if setting not in settings[:place]]


def _spread(knob: BundleKnob, count: int) -> list[float]:
    """The knob's values without its default, so that those of several knobs go step by step."""
    return values(knob.model_copy(update={"default": knob.exact}), count)[1:]


def without(settings: Iterable[Setting], exact: Mapping[str, float], names: Iterable[str]) -> list[Setting]:
    """The settings that move a knob which is none of `names`: what the plain bundle can do as well is left to it.

    Args:
        settings: of a bundle.
        exact: its exact setting.
        names: knobs of the plain bundle.
    """
    shared = set(names)
    return [
        setting for setting in settings if {name for name, value in setting.items() if value != exact[name]} - shared
    ]


def shown(setting: Mapping[str, float], exact: Mapping[str, float]) -> str:
    """A setting in words: the knobs that are not at their exact value.

    Args:
        setting: value by knob.
        exact: the exact value by knob.
    """
    moved = [f"{name} {value:g}" for name, value in setting.items() if value != exact[name]]
    return ", ".join(moved) or "exact"
