"""Chooses the knobs of a request: as its caller set them, by its goals, to begin an escalation, or by default."""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.api import ChosenBy
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model
from attenuator.runtime.explaining import judge_of
from attenuator.serve.goals import Circumstances, knobs_for
from attenuator.serve.schema import ParsedRequest


@dataclass(frozen=True, slots=True)
class Chosen:
    """The knobs that a request runs with.

    Attributes:
        knobs: a value for every knob of the model.
        by: who chose them.
    """

    knobs: Mapping[str, KnobValue]
    by: ChosenBy


def choose_knobs(model: Model, parsed: ParsedRequest, now: Circumstances) -> Chosen:
    """Chooses the knobs.

    Args:
        model: the model.
        parsed: the request.
        now: under which circumstances a goal chooses.

    Raises:
        GoalOutOfReach: its goals contradict each other here, or take a setting that is not permitted.
        Overloaded: its goals can be reached together once less is waiting.
    """
    goal = parsed.options.min_agreement
    if parsed.options.escalate and goal is not None:
        start = None if parsed.requested else judge_of(model).start(now.tokens, goal, now.permits)
        return Chosen(start or parsed.knobs, "escalation")
    if parsed.goals:
        return Chosen(knobs_for(model, parsed.options, now), "goal")
    return Chosen(parsed.knobs, "caller" if parsed.requested else "default")
