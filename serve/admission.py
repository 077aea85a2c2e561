"""Whether a request's predicted cost is within `--max-cost`, and which setting would be."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model

BILLION = 1e9
FLOAT_STEPS = 100  # at most, about


def check_cost(
    model: Model,
    tokens: Sequence[int],
    knobs: Mapping[str, KnobValue],
    max_cost: float | None,
    extra: Callable[[Mapping[str, KnobValue]], float] = lambda knobs: 0.0,
    most_extra: Callable[[Mapping[str, KnobValue]], float] | None = None,
) -> None:
    """Refuses a request whose predicted cost is too high.

    Args:
        model: the model.
        tokens: length of each of the request's inputs.
        knobs: a value for every knob.
        max_cost: billions of multiply-adds for the whole request; None has no limit.
        extra: of what runs beside the inputs at a setting, in multiply-adds.
        most_extra: no less than `extra`, and rises with the accuracy, where `extra` itself does not.

    Raises:
        InvalidRequest: names the cost, the limit, and the cheapest and the most accurate setting between which all fit.
    """
    if max_cost is None:
        return

    def most_cost(setting: Mapping[str, KnobValue]) -> float:
        return cost_of(model, tokens, setting) + (most_extra or extra)(setting) / BILLION

    predicted = cost_of(model, tokens, knobs) + extra(knobs) / BILLION
    if predicted <= max_cost:
        return
    sentence = f"the predicted cost is {predicted:.3g} billion multiply-adds, must be at most {max_cost:g}"
    room = room_of(most_cost, knobs, list(model.knobs.rows.values()), max_cost)
    if room is None:
        raise InvalidRequest(
            f"{sentence}: no setting fits, send fewer or shorter inputs",
            param="inputs",
            allowed=f"at most {max_cost:g} billion multiply-adds",
        )
    name, others = room.knob, "".join(f" and {other} {value:g}" for other, value in room.others.items())
    allowed = [f"from {min(room.sampled):g} to {max(room.sampled):g}"] if room.sampled else []
    if room.best == model.knobs.rows[name].exact:
        allowed.insert(0, f"{room.best:g} (exact)")
    raise InvalidRequest(
        f"{sentence}: the cheapest setting that fits is {name} {room.cheapest:g}{others}, the most accurate {name} "
        f"{room.best:g}{others}",
        param=name,
        allowed=f"{name} {' or '.join(allowed)}" + (f" with{others.removeprefix(' and')}" if others else ""),
    )


def cost_of(model: Model, tokens: Sequence[int], knobs: Mapping[str, KnobValue]) -> float:
    """Predicted cost of inputs of these lengths, in billions of multiply-adds."""
    return model.total_cost(tokens, knobs) / BILLION


@dataclass(frozen=True, slots=True)
class Room:
    """Settings that fit a limit: one knob varies, the request's others stay.

    Attributes:
        knob: the one that varies.
        cheapest: its cheapest value.
        best: its most accurate value that fits: the exact one, where that fits.
        sampled: its cheapest and its most accurate value that fit, the exact one aside; empty where none does.
        others: knobs that have to change too, each at its cheapest value.
    """

    knob: str
    cheapest: KnobValue
    best: KnobValue
    sampled: tuple[KnobValue, ...]
    others: dict[str, KnobValue]


def room_of(
    cost: Callable[[Mapping[str, KnobValue]], float],
    knobs: Mapping[str, KnobValue],
    rows: list[BundleKnob],
    max_cost: float,
) -> Room | None:
    """The settings that fit, by the knob that saves most; others change only where that one alone does not do.

    A knob's exact value may be its cheapest: on a short text, or where a seed's draws take more than exact attention.

    Args:
        cost: of a setting.
        knobs: the request's.
        rows: of the bundle.
        max_cost: the limit, in the unit of `cost`.

    Returns:
        The settings, or None where not even the cheapest value of every knob fits.
    """
    values = {row.name: cheapest_first(row) for row in rows}
    exact: dict[str, KnobValue] = {row.name: int(row.exact) if row.dtype == "int32" else row.exact for row in rows}

    def cost_at(name: str, value: KnobValue) -> float:
        return cost({**knobs, name: value})

    cheapest = {name: min(each[0], exact[name], key=partial(cost_at, name)) for name, each in values.items()}
    names = sorted(values, key=lambda name: cost_at(name, cheapest[name]))
    setting, others = dict(knobs), {}
    for name in names:
        if cost({**setting, name: cheapest[name]}) < cost(setting):
            others[name] = setting[name] = cheapest[name]
        if cost(setting) <= max_cost:
            break
    if not others or cost(setting) > max_cost:
        return None
    [knob, *_] = names
    others.pop(knob, None)
    # Whatever is cheaper than a setting that fits, fits too; the exact value has no place in that order.
    fitting = bisect_left(values[knob], True, key=lambda value: cost({**setting, knob: value}) > max_cost)
    sampled: tuple[KnobValue, ...] = (values[knob][0], values[knob][fitting - 1]) if fitting else ()
    if cost({**setting, knob: exact[knob]}) <= max_cost:
        return Room(knob, cheapest[knob], exact[knob], sampled, others)
    return Room(knob, sampled[0], sampled[1], sampled, others)


def cheapest_first(row: BundleKnob) -> list[KnobValue]:
    """Settings of a knob, the exact value aside: accuracy and cost rise along the list."""
    if row.dtype == "int32":
        values: list[KnobValue] = [value for value in range(int(row.low), int(row.high) + 1) if value != row.exact]
    else:
        step = 10 ** math.ceil(math.log10((row.high - row.low) / FLOAT_STEPS))  # so that values have few digits
        multiples = range(math.ceil(row.low / step), math.floor(row.high / step) + 1)
        grid = {row.low, row.high, *(round(each * step, 6) for each in multiples)}
        values = sorted(grid - {row.exact})
    return values if row.accuracy == "rises" else values[::-1]
