"""A log of what may repeat a thousand times a second: one line in an interval, with the count of the others."""

import logging
import time


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
