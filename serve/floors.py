"""How far a request's knobs may be lowered: its floors, checked, and the knobs at a level between asked and floor.

A floor is a knob's least accurate value. At level x, from 0 (as asked) to 1 (the floor), each knob has the most
accurate value whose predicted cost is at most

    cost(asked)^(1 - x) * cost(floor)^x

with the other knobs as asked. A geometric path spreads the level evenly over settings whose costs differ hundredfold. A
knob whose floor would not be cheaper stays as asked.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from attenuator.bundle import BundleKnob
from attenuator.errors import KnobOutOfRange, UnknownField
from attenuator.ops.knobs import KnobValue, accuracy_rank, check_knob, clamped, describe
from attenuator.runtime import KnobTable
from attenuator.runtime.inputs import MAX_FIELD_CHARACTERS
from attenuator.serve.admission import cheapest_first

FIELD = "degradable_to"
ROUNDING = 1 + 1e-9

Floors = Mapping[str, KnobValue]


def check_floors(
    raw: Mapping[str, object], knobs: KnobTable, asked: Mapping[str, KnobValue] | None
) -> dict[str, KnobValue]:
    """Checks the field `degradable_to`.

    Args:
        raw: what the request has there.
        knobs: of the model.
        asked: the request's own value of each knob; None where they are chosen later, so that nothing is compared.

    Returns:
        The floors by knob.

    Raises:
        UnknownField: the model has no such knob; names `degradable_to.NAME`.
        KnobOutOfRange: of a wrong type, out of range, or more accurate than what was asked for.
    """
    floors: dict[str, KnobValue] = {}
    for name, value in raw.items():
        row = knobs.rows.get(name)
        param = f"{FIELD}.{name[:MAX_FIELD_CHARACTERS]}"
        if row is None:
            allowed = ", ".join(f"{each.name}: {describe(each)}" for each in knobs.rows.values()) or "no knob"
            has = " and ".join(knobs.names) or "none"
            raise UnknownField(
                f"{param} is not a knob of model '{knobs.model}', must be one of its knobs: {has}",
                param=param,
                allowed=allowed,
            )
        floor = check_knob(row.model_copy(update={"name": param}), value)
        if asked is not None and accuracy_rank(row, floor) > accuracy_rank(row, asked[name]):
            order = "lower" if row.accuracy == "rises" else "higher"
            allowed = f"at most as accurate as {name} {asked[name]:g}, which the request asks for"
            hint = f"{order} values are less accurate, {row.exact:g} is exact"
            raise KnobOutOfRange(f"{param} is {floor:g}, must be {allowed}; {hint}", param=param, allowed=allowed)
        floors[name] = floor
    return floors


def policy_floors(policy: Mapping[str, float], knobs: KnobTable) -> dict[str, KnobValue]:
    """An operator's floors for one model: those of knobs that it has, within its bounds."""
    return {name: clamped(row, policy[name]) for name, row in knobs.rows.items() if name in policy}


def lowered(
    rows: Sequence[BundleKnob],
    asked: Mapping[str, KnobValue],
    floors: Floors,
    level: float,
    cost: Callable[[Mapping[str, KnobValue]], float],
) -> dict[str, KnobValue]:
    """The knobs at a level.

    Args:
        rows: the model's knobs.
        asked: a value for every knob.
        floors: by knob; a knob without one stays as asked.
        level: 0 to 1.
        cost: predicted work of a setting.

    Returns:
        A value for every knob, none less accurate than its floor and none more accurate than asked. A higher level
        gives no more accurate value.
    """
    setting = dict(asked)
    if level <= 0:
        return setting
    for row in rows:
        if row.name not in floors:
            continue
        values = _between(row, floors[row.name], asked[row.name])

        def cost_at(value: KnobValue, name: str = row.name) -> float:
            return cost({**asked, name: value})

        if values and (least := cost_at(values[0])) < (most := cost_at(asked[row.name])):
            limit = most ** (1 - level) * least**level
            setting[row.name] = values[max(1, bisect_right(values, limit * ROUNDING, key=cost_at)) - 1]
    return setting


def _between(row: BundleKnob, floor: KnobValue, asked: KnobValue) -> list[KnobValue]:
    """Values from the floor on that are less accurate than asked; accuracy and cost rise along the list."""
    low, high = accuracy_rank(row, floor), accuracy_rank(row, asked)
    if low >= high:
        return []
    values, ranks = _ranked(row)
    return [floor, *values[bisect_right(ranks, low) : bisect_left(ranks, high)]]


@lru_cache(maxsize=256)
def _ranked(row: BundleKnob) -> tuple[list[KnobValue], list[float]]:
    """A knob's values, the exact one aside, least accurate first, and their ranks."""
    values = cheapest_first(row)
    return values, [accuracy_rank(row, value) for value in values]
