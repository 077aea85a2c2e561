"""When a call is sent again, and after which pause: one rule for both clients, without any I/O."""

import random
import time
from dataclasses import dataclass

import httpx

from attenuator.clients import answers
from attenuator.clients.connection import CLOSED

RETRIED_STATUS = frozenset({429, 503})
# The connection failed. A read that took too long is not among them: the service may still be at work on the call.
CONNECTION_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, *CLOSED)
FIRST_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is sent again and how long the pauses are.

    A pause is drawn evenly between 0 and 0.25 s, 0.5 s, 1 s ... ("full jitter", which keeps clients that were refused
    together from coming back together), and comes after the time that `Retry-After` asks for.
    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Attributes:
        max_retries: attempts after the first one.
        max_pause_s: longest pause; where `Retry-After` asks for more, the call is not sent again.
    """

    max_retries: int
    max_pause_s: float

    def pause_s(self, answer: httpx.Response | Exception, attempt: int, deadline_s: float) -> float | None:
        """Seconds to wait before the next attempt; None where the call ends with this answer.

        Args:
            answer: what the last attempt ended in.
            attempt: its number, from 0.
            deadline_s: by `time.monotonic`, when the call must have ended; a pause that leads past it is not made.
        """
        if attempt >= self.max_retries:
            return None
        least_s = 0.0
        if isinstance(answer, httpx.Response):
            if answer.status_code not in RETRIED_STATUS:
                return None
            least_s = answers.retry_after_s(answer) or 0.0
        elif not isinstance(answer, CONNECTION_ERRORS):
            return None
        if least_s > self.max_pause_s:
            return None
        pause_s = min(self.max_pause_s, least_s + random.uniform(0.0, FIRST_PAUSE_S * 2.0 ** min(attempt, 10)))
        return pause_s if time.monotonic() + pause_s < deadline_s else None
