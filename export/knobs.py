"""The knobs of a bundle: which its operators have, and the values for requests that set none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from attenuator.bundle import BundleKnob
from attenuator.errors import ExportError
from attenuator.ops.knobs import describe, read_knob_values
from attenuator.ops.spec import Operator, merge_knobs

__all__ = ["requested_defaults", "bundle_knobs", "read_defaults"]

NOTHING: Mapping[str, Any] = {}


def read_defaults(text: str) -> float | dict[str, float]:
    """Reads what the command line says about defaults: `0.5`, or `name=0.5,other=0.2`.

    Raises:
        ValueError: it is neither; says what it must be.
    """
    try:
        return float(text)
    except ValueError:
        pass
    return read_knob_values(text)


def requested_defaults(
    operators: Iterable[Operator], requested: float | Mapping[str, float] | None
) -> dict[str, float]:
    """The caller's defaults by knob; a number without a name is that of an only knob.

    Args:
        operators: those that have the graph's knobs.
        requested: values by knob, or one number.

    Raises:
        ExportError: there is no such knob, or a value is outside its bounds.
    """
    knobs = merge_knobs(operators)
    names = " or ".join(knobs)
    if isinstance(requested, int | float):
        if not knobs:
            raise ExportError("knob_default is set, but this bundle has no knob")
        if len(knobs) > 1:
            raise ExportError(f"knob_default is one number, must name the knob that it is for: {names}")
        requested = dict.fromkeys(knobs, requested)
    for name, value in (requested or {}).items():
        if name not in knobs:
            raise ExportError(
                f"knob_default names the knob '{name}', must be a knob of this bundle: {names or 'it has none'}"
            )
        knob = knobs[name]
        if not knob.low <= value <= knob.high or (knob.dtype == "int32" and value != int(value)):
            raise ExportError(f"the default of {name} is {value:g}, must be {describe(knob)}")
    return dict(requested or {})


def bundle_knobs(
    operators: Iterable[Operator],
    suggested: Mapping[str, float],
    requested: Mapping[str, float],
    attributes: Mapping[str, Any] = NOTHING,
) -> list[BundleKnob]:
    """The knobs of the graph's operators with the bundle's defaults.

    Args:
        operators: those that have the graph's knobs.
        suggested: the checkpoint's own defaults by knob, clipped to the bounds here; other operators' are ignored.
        requested: the caller's by knob, as `requested_defaults` gives them.
        attributes: of the nodes, by name: beyond some of them a knob changes nothing.
    """
    knobs = {
        name: replace(knob, high=min(knob.high, attributes.get(knob.bounded_by) or knob.high))
        for name, knob in merge_knobs(operators).items()
    }
    defaults = {name: knob.default for name, knob in knobs.items()} | {**suggested} | {**requested}
    rows = [replace(knob, default=min(max(defaults[name], knob.low), knob.high)) for name, knob in knobs.items()]
    return [BundleKnob.model_validate(row, from_attributes=True) for row in rows]
