"""Brownout: under load, requests that allow it run with cheaper knobs, before anyone is refused.

Plain data: no clock, no threads, no event loop.

*Pressure* is 0 while the predicted wait is at most half of the target, and 1 from the target on. How full the queue is,
and how many requests are in progress, count in the same way against `FULL` of their limits; the largest of the three is
taken. So knobs are at their floors before anyone is refused. Each API key and class has a pressure of its own: the wait
of its own requests, and what it holds of its own room. So a key that floods lowers nobody else. Of the class `batch`
the wait does not count.

*The level* follows the pressure upwards at once and falls slowly, from 1 to 0 in about 20 times the target, and the
slower the lower it is. So it does not flap: the queue, which grows while the level is too low, holds the level where
the server keeps up. Only requests that may be lowered move it.

*The knobs* at a level. A floor is a knob's least accurate value. At level x, from 0 (as asked) to 1 (the floor), each
knob has the most accurate value whose predicted cost is at most

    cost(asked)^(1 - x) * cost(floor)^x

with the other knobs as asked. A geometric path spreads the level evenly over settings whose costs differ hundredfold. A
knob whose floor would not be cheaper stays as asked.

A request is lowered once, as it enters the queue; `plan.py` says which ones. Its answer is that of the knobs that it
names.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from attenuator.bundle import BundleKnob
from attenuator.errors import KnobOutOfRange, UnknownField
from attenuator.ops.knobs import Knobs, KnobValue, accuracy_rank, check_knob, clamped, describe
from attenuator.runtime import KnobTable, Model
from attenuator.runtime.tokens import MAX_FIELD_CHARACTERS
from attenuator.serve.accuracy.cost import cheapest_first

FALL_TARGETS, FALL_TO = 8, -0.1  # e-folding time in targets, and what is approached, so that 0 is reached
FULL = 0.75  # the level is 1 from here on, so that bursts still find room
LEAST_SHARE = 1 / 16
FIELD = "degradable_to"
ROUNDING = 1 + 1e-9

Floors = Mapping[str, KnobValue]


@dataclass(slots=True)
class Level:
    """How far knobs are lowered.

    Attributes:
        target_s: predicted wait from which on they are at their floors.
        counts_wait: whether the wait counts, as it does but for the class `batch`.
        value: 0 (as asked) to 1 (the floors), when it was last observed.
        observed_s: clock at that time.
    """

    target_s: float
    counts_wait: bool = True
    value: float = 0.0
    observed_s: float = 0.0

    def at(self, now_s: float) -> float:
        """The level, fallen since it was last observed."""
        passed = max(0.0, now_s - self.observed_s) / (FALL_TARGETS * self.target_s)
        return max(0.0, FALL_TO + (self.value - FALL_TO) * math.exp(-passed))

    def observe(self, wait_s: float, fullness: float, now_s: float) -> float:
        """Follows the load, and gives the level.

        Args:
            wait_s: predicted time until a row that arrives now would run.
            fullness: what waits or is in progress as a share of its limit.
            now_s: the clock.
        """
        pressure = 2 * max(wait_s / self.target_s if self.counts_wait else 0.0, fullness / FULL) - 1
        self.value, self.observed_s = max(self.at(now_s), min(1.0, pressure)), now_s
        return self.value


class Brownout:
    """The levels of one service.

    Attributes:
        target_s: predicted wait to hold.
    """

    def __init__(self, target_s: float) -> None:
        """Starts without load."""
        self.target_s = target_s
        self._levels: dict[tuple[str, str], Level] = {}

    def level(self, key: str = "", priority: str = "interactive") -> Level:
        """The level of an API key and class, for all models."""
        return self._levels.setdefault((key, priority), Level(self.target_s, priority != "batch"))

    def highest(self, now_s: float, key: str | None = None) -> float:
        """The highest level, of one API key or of all."""
        return max((each.at(now_s) for (name, _), each in self._levels.items() if key in (None, name)), default=0.0)


def check_floors(raw: Mapping[str, object], knobs: KnobTable, asked: Knobs | None) -> dict[str, KnobValue]:
    """Checks the field `degradable_to`, and gives the floors by knob.

    `asked` is the request's own value of each knob; None where they are chosen later, so that nothing is compared.

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
    asked: Knobs,
    floors: Floors,
    level: float,
    cost: Callable[[Knobs], float],
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


def knobs_at(model: Model, asked: Knobs, floors: Floors, level: float, tokens: Sequence[int]) -> Knobs:
    """A request's knobs at a level, from 0 to 1, chosen for its longest input."""
    if not floors:
        return asked
    longest = max(tokens)
    rows = list(model.knobs.rows.values())
    return lowered(rows, asked, floors, level, lambda knobs: model.predict_cost(longest, knobs))


def room_share(costs: Sequence[float], asked: Sequence[float]) -> float:
    """What a token of a lowered request counts in the queue, whose room is counted in tokens.

    A row that takes a fourth of the time takes a fourth of the room. So the queue holds as many seconds of lowered work
    as it would hold of the work that was asked for. Never less than `LEAST_SHARE`, since tokens take memory as well.

    Args:
        costs: predicted cost of each row as it will run.
        asked: the same as it was asked for.
    """
    return min(1.0, max(LEAST_SHARE, sum(costs) / sum(asked)))


def lowered_share(model: Model, tokens: Sequence[int], knobs: Knobs, unlowered: Knobs) -> float:
    """What a token of a request counts in the queue with some knobs in place of those before load lowered them."""
    if knobs == unlowered:
        return 1.0
    costs, before = ([model.predict_cost(count, each) for count in tokens] for each in (knobs, unlowered))
    return room_share(costs, before)
