"""Chooses the knobs of a request: as its caller set them, by its goals, or by default."""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.api import ChosenBy
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Model
from attenuator.serve.goals import Circumstances, knobs_for, stated_goals
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
    if stated_goals(parsed.options):
        return Chosen(knobs_for(model, parsed.options, now), "goal")
    return Chosen(parsed.knobs, "caller" if parsed.requested else "default")
