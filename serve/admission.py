"""Whether a request's predicted cost is within `--max-cost`, and which setting would be."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
    name, cheapest, best = room.knob, room.cheapest, room.best
    others = "".join(f" and {other} {value:g}" for other, value in room.others.items())
    raise InvalidRequest(
        f"{sentence}: the cheapest setting that fits is {name} {cheapest:g}{others}, the most accurate {name} "
        f"{best:g}{others}",
        param=name,
        allowed=f"{name} from {min(cheapest, best):g} to {max(cheapest, best):g}"
        + (f" with{others.removeprefix(' and')}" if others else ""),
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
        best: its most accurate value that fits.
        others: knobs that have to change too, each at its cheapest value.
    """

    knob: str
    cheapest: KnobValue
    best: KnobValue
    others: dict[str, KnobValue]


def room_of(
    cost: Callable[[Mapping[str, KnobValue]], float],
    knobs: Mapping[str, KnobValue],
    rows: list[BundleKnob],
    max_cost: float,
) -> Room | None:
    """The settings that fit, by the knob that saves most; others change only where that one alone does not do.

    Args:
        cost: of a setting.
        knobs: the request's.
        rows: of the bundle.
        max_cost: the limit, in the unit of `cost`.

    Returns:
        The settings, or None where not even the cheapest value of every knob fits.
    """
    values = {row.name: cheapest_first(row) for row in rows}
    lowest = {name: cost({**knobs, name: each[0]}) for name, each in values.items()}
    names = sorted(values, key=lambda name: lowest[name])
    setting, others = dict(knobs), {}
    for name in names:
        if cost({**setting, name: values[name][0]}) < cost(setting):
            others[name] = setting[name] = values[name][0]
        if cost(setting) <= max_cost:
            break
    if not others or cost(setting) > max_cost:
        return None
    [knob, *_] = names
    others.pop(knob, None)
    # Whatever is cheaper than a setting that fits, fits too.
    fitting = bisect_left(values[knob], True, key=lambda value: cost({**setting, knob: value}) > max_cost)
    return Room(knob, values[knob][0], values[knob][fitting - 1], others)


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
