"""The log on standard error, as text or one JSON object a line; one line per request says what it cost.

Texts, keys and requested paths never appear in it. Every request has an id, taken from `X-Request-Id` or made: it is in
its answer's header and in its lines. Whatever answers a request adds fields with `events.note`: they are in the
request's line as `name=value`, and as fields in JSON.
"""

import json
import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attenuator.errors import printable
from attenuator.rate_limited_log import RateLimitedLog
from attenuator.serve import events
from attenuator.serve.events import CLIENT_LEFT, STATUS_KEY, Listeners

access = logging.getLogger("attenuator.access")
TEXT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
MAX_LINE = 16_384  # characters of a line of text
ID_HEADER = b"x-request-id"
ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)  # what else a caller sends would end up in the log as it is
QUIET_ROUTES = ("/health", "/v2/health/", "/metrics")  # asked for every few seconds by machines
not_valid = RateLimitedLog(access, logging.INFO, interval_s=1.0)  # for what is no request, such as a malformed header


class RequestLog:
    """Wraps an application: gives every request its id, tells of it, and logs one line at its end."""

    def __init__(self, app: ASGIApp, listeners: Listeners) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        text = dict(reversed(scope["headers"])).get(ID_HEADER, b"").decode("latin-1")
        request_id = text if ID.fullmatch(text) else secrets.token_hex(16)
        fields: events.Noted = {}
        events.request_id.set(request_id)
        events.fields.set(fields)
        for began in self._listeners.request_began:
            began(scope)
        started_s = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STATUS_KEY] = message["status"]
                message["headers"] = [*message.get("headers", ()), (ID_HEADER, request_id.encode("ascii"))]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            status = scope.get("state", {}).get("refused", scope.get(STATUS_KEY, CLIENT_LEFT))
            seconds = time.perf_counter() - started_s
            route = getattr(scope.get("route"), "path", "(none)")  # the path asked for may hold a text or a key
            for ended in self._listeners.request_ended:
                ended(route, status, seconds, fields)
            log_request(scope["method"], route, status, seconds * 1e3, fields)


def log_request(method: str, route: str, status: int, duration_ms: float, fields: events.Noted) -> None:
    """One line about a request; of a field that is a mapping, text has the values one by one."""
    level = logging.DEBUG if route.startswith(QUIET_ROUTES) else logging.INFO
    if not access.isEnabledFor(level):
        return
    record = {"method": method[:16], "route": route, "status": status, "duration_ms": round(duration_ms, 3)}
    message = f"{record['method']} {route} {status} {record['duration_ms']} ms"
    for name, value in fields.items():
        if isinstance(value, dict):
            for key, one in value.items():
                message += f" {name}.{key}={one}"
        else:
            message += f" {name}={value}"
    # Not access.log(), which also finds out what no line of ours shows.
    line = access.makeRecord(access.name, level, "", 0, message, (), None)
    line.fields = record | fields
    access.handle(line)


class TextFormatter(logging.Formatter):
    """A message a line, whatever it quotes, such as a folder's name; an exception's traceback follows on its own."""

    _second, _clock = -1, ""  # the last line's, as the epoch's and as written

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - overrides
        """The local time in milliseconds; the clock is written once a second."""
        if (second := int(record.created)) != self._second:
            self._second, self._clock = second, super().formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{self._clock},{int(record.msecs):03}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        """The line without the traceback, with the id of the request that it belongs to."""
        request_id = events.request_id.get()
        record.request = f" [{request_id}]" if request_id else ""
        line = super().formatMessage(record)
        return line if line.isprintable() and len(line) <= MAX_LINE else printable(line, MAX_LINE)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, known in (("request_id", events.request_id.get()), ("trace_id", events.trace_id.get())):
            if known:
                line[name] = known
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(form: str, level: str) -> None:
    """Sends every logger of the process to standard error, in the form `text` or `json`, from a level on."""
    # No line says which file, thread or process it comes from, and finding that out takes longer than the rest:
    # Python's logging HOWTO names these four, the private one too.
    logging._srcfile = None
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Uvicorn warns of every malformed request, with less than the access log says.
    # OpenTelemetry warns of every span that it drops while nobody receives traces.
    for name, least in {"uvicorn": logging.ERROR, "opentelemetry": logging.ERROR, "asyncio": logging.WARNING}.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(level.upper())))
    # Where the service listens and whether it is open is said whatever the level.
    logging.getLogger("attenuator.serve.start").setLevel(min(logging.INFO, logging.getLevelName(level.upper())))
