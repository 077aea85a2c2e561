"""Errors as HTTP answers: status, headers and JSON of each kind.

Every error answer of the service has the body `{"error", "error_type", "param", "allowed"}`; on the routes that other
servers have too, the form and the status that their clients expect.
"""

import functools
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from attenuator import errors
from attenuator.api import ErrorBody
from attenuator.errors import printable
from attenuator.json_body import MalformedBody
from attenuator.serve import events
from attenuator.serve.edge.arrivals import JSON, BodyTimeout, BodyTooLarge, UnsupportedMediaType

log = logging.getLogger(__name__)


STATUS: dict[type[Exception], int] = {
    MalformedBody: 400,
    errors.Unauthorized: 401,
    errors.UnknownModel: 404,
    BodyTimeout: 408,
    BodyTooLarge: 413,
    UnsupportedMediaType: 415,
    errors.InvalidRequest: 422,
    errors.Overloaded: 429,
    errors.EngineError: 500,
    errors.NotReady: 503,
    errors.DeadlineExceeded: 504,
}
# Kinds that no error class stands for, by status: of routes, and of requests that are not valid HTTP.
ROUTING_KINDS = {404: "not_found", 405: "method_not_allowed"}
PROTOCOL_KINDS = {
    408: "header_timeout",
    421: "host_not_allowed",
    431: "header_too_large",
    501: "unsupported_transfer_encoding",
    503: "not_ready",
}
MALFORMED_REQUEST, INTERNAL_ERROR, HTTP_ERROR = "malformed_request", "internal_error", "http_error"


@functools.cache
def error_type(class_name: str) -> str:
    """Name of an error's kind in JSON, such as `knob_out_of_range`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an error answer says: HTTP status, sentence, `error_type`, the wrong field and what is allowed there."""

    status: int
    sentence: str
    kind: str
    param: str | None = None
    allowed: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """The form that a protocol's clients expect of an error.

    Attributes:
        kind: type of its body.
        body: makes one.
        statuses: the service's own, and what the protocol has in their place.
    """

    kind: type[BaseModel]
    body: Callable[[Refusal], BaseModel]
    statuses: Mapping[int, int] = field(default_factory=dict)


def own_body(refusal: Refusal) -> ErrorBody:
    """The body of the service's own error answers."""
    sentence = printable(refusal.sentence)
    return ErrorBody(error=sentence, error_type=refusal.kind, param=refusal.param, allowed=refusal.allowed)


OWN_FORM = ErrorForm(ErrorBody, own_body)


def protocol_error(status: int, sentence: str) -> tuple[str, bytes]:
    """Kind and body of the answer to what is not a valid request."""
    kind = PROTOCOL_KINDS.get(status, MALFORMED_REQUEST)
    return kind, own_body(Refusal(status, sentence, kind)).model_dump_json().encode()


def error_response(refusal: Refusal, headers: Mapping[str, str] | None = None, form: ErrorForm = OWN_FORM) -> Response:
    """An error answer with further headers, in the form of a protocol."""
    events.note(error_type=refusal.kind)
    status = form.statuses.get(refusal.status, refusal.status)
    content = form.body(replace(refusal, status=status)).model_dump_json()
    return Response(content, status, headers, JSON)


def response_for(error: errors.AttenuatorError, form: ErrorForm = OWN_FORM) -> Response:
    """The answer for an error raised on purpose; one of the service itself is logged."""
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    headers: dict[str, str] = {}
    param = allowed = None
    if isinstance(error, errors.InvalidRequest | errors.UnknownModel):
        param, allowed = error.param, error.allowed
    if isinstance(error, errors.Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or 1)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        headers["Retry-After"] = "1"
    if status in (408, 413):  # what is left of the body would be read as the next request
        headers["Connection"] = "close"
    sentence = str(error)
    if status == 500:  # what ONNX Runtime said is for the log
        detail = error.detail if isinstance(error, errors.EngineError) else None
        log.error("request failed: %s", f"{error}: {detail}" if detail else error)
        sentence = f"{sentence}; the service's log says more, under id {events.request_id.get()}"
    refusal = Refusal(status, sentence, error_type(type(error).__name__), param, allowed)
    return error_response(refusal, headers, form)


def answer_to(error: Exception, form: ErrorForm = OWN_FORM) -> Response:
    """The answer to a request that ended with any error; where the client has left, an empty one for the log."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=events.CLIENT_LEFT)
    if isinstance(error, errors.AttenuatorError):
        return response_for(error, form)
    sentence = f"the service failed on this request; its log says why, under id {events.request_id.get()}"
    refusal = Refusal(500, sentence, INTERNAL_ERROR)
    return error_response(refusal, form=form)


def stopped(form: ErrorForm = OWN_FORM) -> Response:
    """The answer to a request that was in progress when the service stopped."""
    answer = response_for(errors.NotReady("the service was stopped before this request was finished"), form)
    answer.headers["Connection"] = "close"
    return answer
