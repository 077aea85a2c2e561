"""What rooms tell about the request that is being answered, and what they may know of it: its id and its trace.

The access log, metrics and traces read it; every request has a task of its own, so that each sees its own.
"""

import logging
import time
from contextvars import ContextVar
from typing import Any, Protocol

CLIENT_LEFT = 499  # the status of a request whose client disconnected; it is not sent
PROTOCOL_ERROR_INTERVAL_S = 1.0


class Trace(Protocol):
    """The trace that a request belongs to."""

    @property
    def trace_id(self) -> str:
        """As log lines have it."""


request_id: ContextVar[str] = ContextVar("request_id", default="")
trace: ContextVar[Trace | None] = ContextVar("request_trace", default=None)
fields: ContextVar[dict[str, Any] | None] = ContextVar("access_fields", default=None)


def note(**values: Any) -> None:
    """Adds fields to the request that is being answered; each name is listed with the log in docs/operations.md."""
    noted = fields.get()
    if noted is not None:
        noted.update(values)


class RateLimitedLog:
    """Logs at most one line in an interval, with the count of those that were left out."""

    def __init__(self, logger: logging.Logger, level: int, interval_s: float) -> None:
        self._logger = logger
        self._level = level
        self._interval_s = interval_s
        self._next_s = 0.0
        self._count = 0

    def __call__(self, message: str, *values: object) -> None:
        """One line, or one more for the count."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._count += 1
            return
        repeated = f" ({self._count} more since the last such line)" if self._count else ""
        self._count, self._next_s = 0, now_s + self._interval_s
        self._logger.log(self._level, f"{message}%s", *values, repeated)


_refused = RateLimitedLog(logging.getLogger("attenuator.access"), logging.INFO, PROTOCOL_ERROR_INTERVAL_S)


def refused(status: int, kind: str) -> None:
    """Tells of input that is not a request, such as a malformed header: at most one line a second."""
    _refused("answered %d to what is not a valid request, error_type=%s", status, kind)
