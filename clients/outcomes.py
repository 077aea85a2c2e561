"""What becomes of one input among many, and how its error is written to a file and read again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attenuator import errors
from attenuator.api import Classification
from attenuator.clients.calls import Input
from attenuator.errors import AttenuatorError, InvalidRequest
from attenuator.ops import KNOBS

ERRORS_OF_OPTIONS = (errors.UnknownField, errors.KnobOutOfRange, errors.NotCalibrated)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one input: an answer, or the error that this input alone met.

    Attributes:
        index: place of the input among all, from 0.
        input: as it was passed.
        answer: with one prediction; None where there is an error.
        error: the input was refused (`InvalidRequest` and its kinds), took too long (`DeadlineExceeded` and
            `NoAnswerInTime`, both `TimeoutError`), or failed inside the service (`EngineError`); None with an answer.
    """

    index: int
    input: Input
    answer: Classification | None = None
    error: AttenuatorError | None = None

    def result(self) -> Classification:
        """The answer; raises the error where there is none."""
        if self.answer is None:
            raise self.error or AssertionError
        return self.answer


def meets_one_input(error: AttenuatorError) -> bool:
    """Whether an error says something of one input, while other inputs may well be answered."""
    if not isinstance(error, InvalidRequest):
        return isinstance(error, TimeoutError | errors.EngineError)
    if (error.param or "inputs").startswith("inputs") or isinstance(error, errors.GoalOutOfReach):
        return True
    # A knob that is in its bounds is refused where it makes this input too expensive for the service.
    return error.param in KNOBS and not isinstance(error, ERRORS_OF_OPTIONS)


def error_record(error: AttenuatorError) -> dict[str, Any]:
    """An error in JSON's types."""
    record = {"type": type(error).__name__, "sentence": str(error), "status": error.status}
    return record | {name: getattr(error, name, None) for name in ("param", "allowed")}


def read_error(record: Mapping[str, Any]) -> AttenuatorError:
    """The error of a record."""
    kind = getattr(errors, record["type"])
    fields = {name: record[name] for name in ("param", "allowed")} if issubclass(kind, InvalidRequest) else {}
    error: AttenuatorError = kind(record["sentence"], **fields)
    error.status = record["status"]
    return error
