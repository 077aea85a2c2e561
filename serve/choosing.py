"""Chooses the knobs of a request: as its caller set them, or by default."""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.api import ChosenBy
from attenuator.ops.knobs import KnobValue
from attenuator.serve.schema import ParsedRequest


@dataclass(frozen=True, slots=True)
class Chosen:
    """The knobs that a request runs with.

    Attributes:
        knobs: a value for every knob of the model.
        by: who chose them.
        expected_agreement: calibrated share of texts on which these knobs give the exact answer; None where unknown.
    """

    knobs: Mapping[str, KnobValue]
    by: ChosenBy
    expected_agreement: float | None = None


def chosen_by_request(parsed: ParsedRequest) -> Chosen:
    """The knobs as the caller set them, others by default."""
    return Chosen(parsed.knobs, "caller" if parsed.requested else "default")
