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

*Who may be lowered.* A request with `degradable_to`, down to its floors; a request without, to which the operator's
policy applies if it sets no knob itself. A caller who sets a knob or states a goal has decided, and
`"degradable_to": {}` says no to the policy. A request with `min_agreement` is never lowered: that goal is a floor of
its own, and chose the cheapest knobs that keep it.

A request is lowered as it enters the queue, and again as its turn comes if the level has risen (`lowering.py`): then
more came than was foreseen, or what ran took longer. Its answer is that of the knobs that it names either way.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model
from attenuator.serve.floors import Floors, lowered, policy_floors
from attenuator.serve.goals import AGREEMENT
from attenuator.serve.jobs import Class, Flow
from attenuator.serve.schema import ParsedRequest

FALL_TARGETS, FALL_TO = 8, -0.1  # e-folding time in targets, and what is approached, so that 0 is reached
FULL = 0.75  # the level is 1 from here on, so that bursts still find room
LEAST_SHARE = 1 / 16


@dataclass(slots=True)
class Level:
    """How far knobs are lowered.

    Attributes:
        target_s: predicted wait from which on they are at their floors.
        value: 0 (as asked) to 1 (the floors), when it was last observed.
        observed_s: clock at that time.
    """

    target_s: float
    value: float = 0.0
    observed_s: float = 0.0

    def at(self, now_s: float) -> float:
        """The level, fallen since it was last observed."""
        passed = max(0.0, now_s - self.observed_s) / (FALL_TARGETS * self.target_s)
        return max(0.0, FALL_TO + (self.value - FALL_TO) * math.exp(-passed))

    def observe(self, wait_s: float, fullness: float, now_s: float) -> float:
        """Follows the load.

        Args:
            wait_s: predicted time until a row that arrives now would run.
            fullness: what waits or is in progress as a share of its limit.
            now_s: the clock.

        Returns:
            The level.
        """
        pressure = 2 * max(wait_s / self.target_s, fullness / FULL) - 1
        self.value, self.observed_s = max(self.at(now_s), min(1.0, pressure)), now_s
        return self.value


class Brownout:
    """Decides which requests are lowered, and how far.

    Attributes:
        target_s: predicted wait to hold.
    """

    def __init__(self, target_s: float, policy: Mapping[str, float]) -> None:
        """Starts without load.

        Args:
            target_s: predicted wait to hold.
            policy: the operator's floors by knob; empty lowers only requests that say so themselves.
        """
        self.target_s = target_s
        self._policy = policy
        self._levels: dict[tuple[str, Class], Level] = {}

    def level(self, flow: Flow) -> Level:
        """The level of an API key and class, for all models."""
        return self._levels.setdefault((flow.key, flow.priority), Level(self.target_s))

    def highest(self, now_s: float, key: str | None = None) -> float:
        """The highest level, of one API key or of all."""
        return max((each.at(now_s) for (name, _), each in self._levels.items() if key in (None, name)), default=0.0)

    def floors(self, model: Model, parsed: ParsedRequest) -> Floors:
        """How far a request's knobs may fall; empty where it may not be lowered."""
        if AGREEMENT in parsed.goals:
            return {}
        if parsed.floors is not None:
            return parsed.floors
        return {} if parsed.requested or parsed.goals else self.policy(model)

    def policy(self, model: Model) -> Floors:
        """The operator's floors for a model; empty where there are none."""
        return policy_floors(self._policy, model.knobs)


def knobs_at(
    model: Model, asked: Mapping[str, KnobValue], floors: Floors, level: float, tokens: Sequence[int]
) -> Mapping[str, KnobValue]:
    """A request's knobs at a level, chosen for its longest input.

    Args:
        model: which will run.
        asked: the knobs that it would run with.
        floors: how far they may fall.
        level: 0 to 1.
        tokens: of its inputs.
    """
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


def lowered_share(
    model: Model, tokens: Sequence[int], knobs: Mapping[str, KnobValue], asked: Mapping[str, KnobValue]
) -> float:
    """What a token of a request counts in the queue with some knobs in place of those asked for."""
    if knobs == asked:
        return 1.0
    costs, asked_costs = ([model.predict_cost(count, each) for count in tokens] for each in (knobs, asked))
    return room_share(costs, asked_costs)
