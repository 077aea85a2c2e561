"""The access log: one line per request, with what it cost; texts, keys and requested paths never appear in it.

Whatever answers a request adds fields with `events.note`; they are in the line as `name=value`, and as fields in JSON.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attenuator.serve.observe import events
from attenuator.serve.observe.events import CLIENT_LEFT

log = logging.getLogger("attenuator.access")

QUIET_ROUTES = ("/health", "/v2/health/", "/metrics")  # asked for every few seconds by machines

Ended = Callable[[str, int, float, Mapping[str, Any]], None]


class AccessLog:
    """Wraps an application: logs one line at the end of every request."""

    def __init__(self, app: ASGIApp, ended: Ended) -> None:
        """Wraps it.

        Args:
            app: the application.
            ended: told route, status, seconds and fields of every request.
        """
        self._app = app
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_LEFT
        fields: dict[str, Any] = {}
        events.fields.set(fields)
        started_s = time.perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            status = scope.get("state", {}).get("refused", status)
            seconds = time.perf_counter() - started_s
            route = getattr(scope.get("route"), "path", "(none)")  # the path asked for may hold a text or a key
            self._ended(route, status, seconds, fields)
            _log_request(scope["method"], route, status, seconds * 1e3, fields)


def _log_request(method: str, route: str, status: int, duration_ms: float, fields: dict[str, Any]) -> None:
    level = logging.DEBUG if route.startswith(QUIET_ROUTES) else logging.INFO
    if not log.isEnabledFor(level):
        return
    record = {"method": method[:16], "route": route, "status": status, "duration_ms": round(duration_ms, 3)}
    pairs = "".join(f" {name}={value}" for name, value in _flat(fields))
    message = f"{record['method']} {route} {status} {record['duration_ms']} ms{pairs}"
    log.log(level, "%s", message, extra={"fields": record | fields})


def _flat(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Fields of a line of text: those of a mapping one by one."""
    pairs: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            pairs += [(f"{name}.{key}", one) for key, one in value.items()]
        else:
            pairs.append((name, value))
    return pairs
