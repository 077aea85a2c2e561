"""Every error the product raises on purpose.

    AttenuatorError
    ├── InvalidRequest              a caller's input is wrong; names the field and what is allowed
    │   ├── UnknownField
    │   ├── KnobOutOfRange
    │   ├── InputTooLong
    │   ├── NotCalibrated           a goal for a model without a calibration
    │   └── GoalOutOfReach          no setting keeps all of the goals, however idle the service
    ├── UnknownModel
    ├── BundleError                 a bundle is missing, damaged, of another version, or hostile
    ├── ExportError                 a model cannot be exported as asked
    ├── OperatorLibraryMissing      libattenuator_ops.so is not built
    ├── DeviceUnavailable           the CPU or CUDA device that was asked for cannot be used; says what is missing
    ├── EngineError                 ONNX Runtime failed on a request that passed every check
    ├── DeadlineExceeded            the caller's deadline passed; a TimeoutError
    ├── NotReady                    starting, draining or stopped
    ├── Overloaded                  too much is waiting; says when to come back
    │   └── RateLimited
    ├── Unauthorized                the API key is missing or wrong
    ├── ServiceUnreachable          client side: no answer came
    │   └── NoAnswerInTime          within the client's own time limits; a TimeoutError
    └── UnexpectedAnswer            client side: the answer is not this API's

HTTP status codes are given to them in `serve/api/errors.py` alone.

A sentence may quote a file or a request, so every error passes its text through `printable`.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

SIMILAR = 0.7  # `closest`: the least share of characters in common; `frobnicate` and `truncate` have 0.67
MAX_NAME = 100
MAX_SENTENCE = 1000  # characters of an error's text
# Controls, halves of surrogate pairs, and marks that turn the direction of what is printed after them.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
BREAKS = re.compile(r"[\t-\r\x1c-\x1f\x85\u2028\u2029]+")


def printable(text: str, limit: int = MAX_SENTENCE) -> str:
    """A text that may be written to a terminal or a log as one line.

    Args:
        text: of any origin.
        limit: characters to keep.

    Returns:
        The text with line breaks and tabs as spaces, without other control characters, halves of surrogate pairs and
        marks of writing direction; cut to the limit, with an ellipsis.
    """
    line = CONTROL.sub("", BREAKS.sub(" ", text[: 2 * limit]))
    return line if len(text) <= 2 * limit and len(line) <= limit else f"{line[: limit - 1]}\u2026"


def closest(name: str, known: Iterable[str], prefix: str = "") -> list[str]:
    """The known names that a mistyped one may stand for: at most three, the likeliest first.

    Args:
        name: as it was typed.
        known: names that there are.
        prefix: what names begin with and what therefore says nothing, such as `--`.
    """
    if len(name) > MAX_NAME:  # the search takes a microsecond a character, and a field's name may have millions
        return []
    rests = [one.removeprefix(prefix) for one in known if one.startswith(prefix)]
    return [prefix + rest for rest in get_close_matches(name.removeprefix(prefix), rests, cutoff=SIMILAR)]


class AttenuatorError(Exception):
    """Base of all errors raised on purpose; its text is one sentence for the person who caused it.

    Attributes:
        status: HTTP status of the answer that it stands for, where a service gave one; for clients.
        request_id: the id under which that service's log has the request.
    """

    status: int | None = None
    request_id: str | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message))


class InvalidRequest(AttenuatorError):
    """A caller's input is wrong.

    Attributes:
        param: the field that is wrong, as the caller wrote it (a knob's name, `inputs[2].text`), or None.
        allowed: what is allowed there, in words, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, allowed: str | None = None) -> None:
        super().__init__(message)
        self.param = None if param is None else printable(param)
        self.allowed = None if allowed is None else printable(allowed)


class UnknownField(InvalidRequest):
    """A field that this version does not serve."""


class KnobOutOfRange(InvalidRequest):
    """A knob's value lies outside its bounds, or is of the wrong type."""


class InputTooLong(InvalidRequest):
    """An input has more tokens than the model takes."""


class NotCalibrated(InvalidRequest):
    """A goal was stated for a model whose settings nobody has measured."""


class GoalOutOfReach(InvalidRequest):
    """No setting keeps all goals of a request, even where nothing else runs."""


class UnknownModel(AttenuatorError):
    """No served model has that name, or its version is another.

    Attributes:
        param: what names the model.
        allowed: the served ones, in words, or None.
    """

    def __init__(self, message: str, *, param: str = "model", allowed: str | None = None) -> None:
        super().__init__(message)
        self.param = printable(param)
        self.allowed = None if allowed is None else printable(allowed)


class BundleError(AttenuatorError):
    """A bundle is missing, damaged, of another version, or hostile; names the file."""


class ExportError(AttenuatorError):
    """A model cannot be exported as asked; says why in one sentence."""


class OperatorLibraryMissing(AttenuatorError):
    """The operators' shared library is not built."""


class DeviceUnavailable(AttenuatorError):
    """A device that was asked for cannot be used; names what is missing."""


class EngineError(AttenuatorError):
    """ONNX Runtime failed on a request that had passed every check.

    Attributes:
        detail: what failed inside, as one line for the log; the text itself is for callers and has none of it.
    """

    def __init__(self, message: str, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = None if detail is None else printable(detail)


class DeadlineExceeded(AttenuatorError, TimeoutError):
    """The caller's deadline passed before the answer was there."""


class NotReady(AttenuatorError):
    """The service is starting, draining or stopped."""


class Overloaded(AttenuatorError):
    """Too much is waiting; the request was refused at once.

    Attributes:
        retry_after_s: seconds after which a new attempt should succeed, or None where unknown.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """The API key was used more often than it may be."""


class Unauthorized(AttenuatorError):
    """The API key is missing or wrong."""


class ServiceUnreachable(AttenuatorError):
    """Client side: no answer came: connection refused, unknown host, or silence until the client's time limit."""


class NoAnswerInTime(ServiceUnreachable, TimeoutError):
    """Client side: one of the client's own time limits passed; the service may still be at work."""


class UnexpectedAnswer(AttenuatorError):
    """Client side: something answered, but not as this API does (another program's port, a proxy, another version)."""
