"""Log lines on standard error, as text or one JSON object a line; texts of requests never appear in them."""

import json
import logging
import time

from attenuator.errors import printable
from attenuator.serve.observe import events, requestid

TEXT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
MAX_LINE = 16_384  # characters of a line of text


class TextFormatter(logging.Formatter):
    """A message a line, whatever it quotes, such as a folder's name; an exception's traceback follows on its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        """The line without the traceback."""
        return printable(super().formatMessage(record), MAX_LINE)


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
        request_id = getattr(record, "request_id", "")
        if request_id:
            line["request_id"] = request_id
        trace = events.trace.get()
        if trace is not None:
            line["trace_id"] = trace.trace_id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(form: str, level: str) -> None:
    """Sends every logger of the process to standard error.

    Args:
        form: `text` or `json`.
        level: least severe line that is written.
    """
    # No line says which file, thread or process it comes from, and finding that out takes longer than the rest.
    logging._srcfile = None
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    handler = logging.StreamHandler()
    handler.addFilter(requestid.add_to)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Uvicorn warns of every malformed request, with less than the access log says.
    # OpenTelemetry warns of every span that it drops while nobody receives traces.
    for name, least in {"uvicorn": logging.ERROR, "opentelemetry": logging.ERROR, "asyncio": logging.WARNING}.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(level.upper())))
    # Where the service listens and whether it is open is said whatever the level.
    logging.getLogger("attenuator.serve.start").setLevel(min(logging.INFO, logging.getLevelName(level.upper())))
