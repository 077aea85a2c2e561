"""From an HTTP answer to a result or to the error it stands for."""

import contextlib
import email.utils
import time
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from attenuator import errors
from attenuator.api import Received
from attenuator.clients.calls import Call

T = TypeVar("T")

# For answers without this API's error body, such as those of proxies and gateways.
BY_STATUS: dict[int, type[errors.AttenuatorError]] = {
    401: errors.Unauthorized,
    403: errors.Unauthorized,
    413: errors.InvalidRequest,
    429: errors.Overloaded,
    503: errors.NotReady,
    504: errors.DeadlineExceeded,
}
# By `error_type` without underscores. Errors that only the service defines are not among them.
BY_NAME: dict[str, type[errors.AttenuatorError]] = {
    name.lower(): kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.AttenuatorError)
}
EXCERPT_CHARACTERS = 200
REQUEST_ID = "X-Request-Id"


def _excerpt(response: httpx.Response) -> str:
    text = " ".join(response.text.split())
    return text[:EXCERPT_CHARACTERS] + ("..." if len(text) > EXCERPT_CHARACTERS else "")


def retry_after_s(response: httpx.Response) -> float | None:
    """Seconds that the header `Retry-After` asks for, in seconds or as a date; None where it is missing or neither."""
    value = response.headers.get("Retry-After")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError, OverflowError):  # the latter by a year or an hour of many digits
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def error_of(response: httpx.Response) -> errors.AttenuatorError:
    """The error that an unsuccessful answer stands for.

    The body names it in `error_type` or, on routes whose `error_type` is another server's, in `code`. An answer without
    it, from a proxy for instance, is judged by its status.
    """
    body: Any = None
    with contextlib.suppress(ValueError):
        body = response.json()
    kind: type[errors.AttenuatorError] | None = None
    sentence = f"{response.request.method} {response.url} answered {response.status_code}: {_excerpt(response)}"
    param = allowed = None
    if isinstance(body, dict) and isinstance(body.get("error"), str):
        sentence = body["error"]
        param, allowed = body.get("param"), body.get("allowed")
        name = body.get("code") or body.get(
            "error_type", ""
        )  # the first on routes whose error_type is another server's
        kind = BY_NAME.get(str(name).replace("_", "").lower())
        if kind is None and response.status_code < 500:
            kind = errors.InvalidRequest
    kind = BY_STATUS.get(response.status_code, errors.UnexpectedAnswer) if kind is None else kind
    error: errors.AttenuatorError
    if issubclass(kind, errors.InvalidRequest):
        error = kind(sentence, param=param, allowed=allowed)
    elif issubclass(kind, errors.Overloaded):
        error = kind(sentence, retry_after_s=retry_after_s(response))
    else:
        error = kind(sentence)
    return _answered(error, response)


def _answered(error: errors.AttenuatorError, response: httpx.Response) -> errors.AttenuatorError:
    error.status, error.request_id = response.status_code, response.headers.get(REQUEST_ID)
    return error


def result_of(call: Call[T], response: httpx.Response) -> T:
    """Reads a successful answer.

    Raises:
        UnexpectedAnswer: it is not what this API answers.
    """
    try:
        result = call.parse(response.json())
        if isinstance(result, Received):
            result.received(request_id=response.headers.get(REQUEST_ID), status=response.status_code)
        return result
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        detail = f"{where}: {first['msg']}"
    except ValueError:
        detail = f"not JSON: {_excerpt(response)}"
    sentence = f"the answer of {response.url} is not one that Attenuator gives: {detail}"
    raise _answered(errors.UnexpectedAnswer(sentence), response)
