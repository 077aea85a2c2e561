"""Goals: the caller says how sure or how fast, and calibration chooses the knobs.

One setting per request, for its longest input, from the settings on the frontier of that length (`calibration`):

* `min_agreement`: the cheapest setting whose lower bound reaches it; 1 is the exact setting.
* `max_latency_ms`: the most accurate setting that is predicted to be answered in time. Counted are the time since the
  request began, which includes tokenizing, what runs and waits before it, and its own rows. Where none is fast enough
  the fastest runs, and where the ceilings lie below all of them the defaults within these: this goal chooses, the
  limit that is kept is `timeout_ms`.
* Neither, nor anything else: the default goal of the calibration, where it has one, chooses as far as it may.
* Both: `max_latency_ms` chooses, and if what it chooses does not reach `min_agreement`, the request is refused: as one
  that asks too much if an idle service could not do it either, else as one that comes at a bad time.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from attenuator.calibration import Calibration, keeping_default, out_of_reach, reaching
from attenuator.calibration.schema import shown
from attenuator.errors import GoalOutOfReach, Overloaded
from attenuator.ops.knobs import Knobs, KnobValue
from attenuator.runtime import Model

AGREEMENT: Final = "min_agreement"
LATENCY: Final = "max_latency_ms"
GOALS = (AGREEMENT, LATENCY)


@dataclass(frozen=True, slots=True)
class Frontier:
    """The settings of one range of lengths, from the exact one to the cheapest.

    Attributes:
        settings: a value for every knob, checked.
        bounds: lower bound of the agreement of each.
        keeping_default: how many of the first of them keep the default agreement; 0 where there is none.
    """

    settings: list[dict[str, KnobValue]]
    bounds: list[float]
    keeping_default: int


# By model and bucket of lengths: made once, not by request.
_frontiers: WeakKeyDictionary[Model, dict[int, Frontier]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a choice depends on besides the request.

    Attributes:
        tokens: length of the longest input.
        elapsed_s: since the request began.
        forecast: seconds until the request would run at a setting, and those that it would then run.
        permits: whether the caller may have a setting: API keys have ceilings, the service a limit on cost.
        otherwise: the defaults within these ceilings, which may lie below every setting that was measured.
    """

    tokens: int
    elapsed_s: float
    forecast: Callable[[Knobs], tuple[float, float]]
    permits: Callable[[Knobs], bool]
    otherwise: Knobs | None = None


def knobs_for(
    model: Model, now: Circumstances, *, min_agreement: float | None = None, max_latency_ms: float | None = None
) -> dict[str, KnobValue]:
    """The knobs that a request's goals choose, one of which at least is stated; a value for every knob.

    Raises:
        GoalOutOfReach: the goals contradict each other for this model here, take a setting that is not permitted, or
            ask for more than the model's rounding keeps.
        Overloaded: they can be reached together once less is waiting.
    """
    assert model.calibration is not None
    row = _frontier(model, model.calibration, now.tokens)
    frontier = row.settings
    kept = len(frontier) if min_agreement is None else reaching(row.bounds, min_agreement)
    if not kept and min_agreement is not None:
        raise out_of_reach(model.calibration, model.calibration.bucket(now.tokens), min_agreement)
    keeping = frontier[:kept]
    if max_latency_ms is None:
        chosen = next((knobs for knobs in reversed(keeping) if now.permits(knobs)), None)
        if chosen is not None:
            return dict(chosen)
    else:
        permitted = ((place, knobs) for place, knobs in enumerate(frontier) if now.permits(knobs))
        place, in_time = _most_accurate(permitted, max_latency_ms / 1000 - now.elapsed_s, now)
        if place is not None and (min_agreement is None or (in_time and place < kept)):
            return dict(frontier[place])
        if min_agreement is not None and (usable := [knobs for knobs in keeping if now.permits(knobs)]):
            raise _refusal(usable, min_agreement, max_latency_ms, now)
        if min_agreement is None and now.otherwise is not None and now.permits(now.otherwise):
            return dict(now.otherwise)
    name, goal = (LATENCY, max_latency_ms) if min_agreement is None else (AGREEMENT, min_agreement)
    raise GoalOutOfReach(
        f"{name} {goal:g} takes {shown(keeping[-1])} or more accurate knobs here, which the ceilings "
        "of the API key or the service's limit on cost do not permit",
        param=name,
        allowed="goals that permitted knobs reach",
    )


def default_knobs_for(model: Model, tokens: int, permits: Callable[[Knobs], bool]) -> dict[str, KnobValue] | None:
    """The knobs of a request that sets nothing, by the default goal of its model's calibration.

    Returns:
        A value for every knob: those of `runtime.calibrated.default_knobs` where they are permitted, else the cheapest
        permitted ones that keep the goal as well, else the most accurate permitted ones of the frontier. None where the
        model has no default goal, or none of them is permitted.
    """
    calibration = model.calibration
    if calibration is None or calibration.default_agreement is None:
        return None
    frontier = _frontier(model, calibration, tokens)
    kept = frontier.keeping_default
    order = (*reversed(frontier.settings[:kept]), *frontier.settings[kept:])
    chosen = next((knobs for knobs in order if permits(knobs)), None)
    return None if chosen is None else dict(chosen)


def _frontier(model: Model, calibration: Calibration, tokens: int) -> Frontier:
    """The settings of a length."""
    bucket = calibration.bucket(tokens)
    frontiers = _frontiers.setdefault(model, {})
    if bucket not in frontiers:
        settings = [model.knobs.check(setting.knobs) for setting in calibration.frontier(bucket)]
        kept = 0 if calibration.default_agreement is None else keeping_default(calibration, bucket)
        frontiers[bucket] = Frontier(settings, calibration.bounds(bucket), kept)
    return frontiers[bucket]


def _most_accurate(
    settings: Iterable[tuple[int, Knobs]], limit_s: float, now: Circumstances
) -> tuple[int | None, bool]:
    """The place of the first setting that is done in time, else of the fastest; and whether it is in time."""
    fastest, least_s = None, math.inf
    for place, knobs in settings:
        total_s = sum(now.forecast(knobs))
        if total_s <= limit_s:
            return place, True
        if total_s < least_s:
            fastest, least_s = place, total_s
    return fastest, False


def _refusal(
    reaching: Sequence[Knobs], min_agreement: float, max_latency_ms: float, now: Circumstances
) -> GoalOutOfReach | Overloaded:
    """Why no setting keeps both goals."""
    seconds, knobs = min(((now.forecast(knobs), knobs) for knobs in reaching), key=lambda pair: pair[0][1])
    return too_slow(shown(knobs), seconds, min_agreement, max_latency_ms, now.elapsed_s)


def too_slow(
    what: str, seconds: tuple[float, float], min_agreement: float, max_latency_ms: float, elapsed_s: float
) -> GoalOutOfReach | Overloaded:
    """Why both goals cannot be kept: the goals, or the load.

    Args:
        what: the fastest that reaches the agreement, in words.
        seconds: that it waits and runs.
        min_agreement: the one goal.
        max_latency_ms: the other.
        elapsed_s: since the request began.
    """
    queue_s, run_s = seconds
    idle_ms = (elapsed_s + run_s) * 1000
    needs = f"{AGREEMENT} {min_agreement:g} takes about {_shown(idle_ms)} ms here at these lengths ({what})"
    if idle_ms > max_latency_ms:
        return GoalOutOfReach(
            f"{needs}, and {LATENCY} is {max_latency_ms:g}: raise {LATENCY} or lower {AGREEMENT}",
            param=LATENCY,
            allowed=f"about {_shown(idle_ms)} or more with {AGREEMENT} {min_agreement:g}",
        )
    wait_s = elapsed_s + (queue_s + run_s) - max_latency_ms / 1000
    return Overloaded(
        f"the service is overloaded: {needs} and waits {_shown(queue_s * 1000)} ms, and {LATENCY} is "
        f"{max_latency_ms:g}; try again in {max(1.0, wait_s):.0f} s",
        retry_after_s=wait_s,
    )


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"
