"""Spans of requests for OpenTelemetry; the only module that loads its packages.

A request has one span from its header to the end of its answer, and under it one for each phase: tokenize, queue,
compute. What a span says comes from the fields of the request's line in the access log: never a text, a key or a path
as it was asked for.

Times are measured on the steady clock from each request's start: when the wall clock jumps, no span gets another
length.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from attenuator import __version__
from attenuator.serve import events
from attenuator.serve.events import Listeners, Noted
from attenuator.serve.observe.logs import QUIET_ROUTES

PREFIX = "attenuator."
SERVICE = "attenuator"
METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"}
OTHER = "_OTHER"  # the conventions' word for a method that HTTP does not define
PHASES = ("tokenize", "queue", "compute")
STANDARD = {"error_type": "error.type"}
LAST_SPANS_S = 3.0


request_span: ContextVar[object] = ContextVar("request_span", default=None)


class Traces:
    """Makes the spans of one service."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Makes it; `processor` gets every span that ends."""
        named = OTEL_SERVICE_NAME in os.environ or "service.name=" in os.environ.get(OTEL_RESOURCE_ATTRIBUTES, "")
        own = {"service.version": __version__} | ({} if named else {"service.name": SERVICE})
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(SERVICE, __version__)

    def request_began(self, scope: Mapping[str, Any]) -> None:
        """Begins the span of a request, unless it is a probe or a scrape."""
        if scope["path"].startswith(QUIET_ROUTES):
            return
        method = scope["method"] if scope["method"] in METHODS else OTHER
        span = self._tracer.start_span(
            "HTTP" if method == OTHER else method,
            context=propagate.extract(trace_headers(scope["headers"]), Context()),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, f"{PREFIX}request_id": events.request_id.get()},
            start_time=time.time_ns(),
        )
        events.trace_id.set(f"{span.get_span_context().trace_id:032x}")
        request_span.set(span)

    def listen(self, listeners: Listeners) -> None:
        """Listens to requests."""
        listeners.request_began.append(self.request_began)
        listeners.request_ended.append(self.request_ended)

    def request_ended(self, route: str, status: int, seconds: float, fields: Noted) -> None:
        """Completes and ends the span of the request that is being answered."""
        span = request_span.get()
        if not isinstance(span, Span) or not span.is_recording() or span.start_time is None:
            return  # it has none, or one that the sampler leaves out
        span.set_attributes({"http.route": route, "http.response.status_code": status, **attributes(fields)})
        span.update_name(f"{span.name} {route}")
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside, began_ns = set_span_in_context(span, Context()), span.start_time
        for phase in PHASES if "timing_ms" in fields else ():
            inner = self._tracer.start_span(phase, context=inside, start_time=began_ns)
            began_ns += round(fields["timing_ms"][phase] / 1e3 * 1e9)
            inner.end(began_ns)
        span.end(span.start_time + round(seconds * 1e9))

    async def stop(self) -> None:
        """Sends what is left; a receiver that does not answer is waited for a few seconds at most."""
        # A thread that may stay behind at the exit of the process: exporters try again for half a minute.
        stopping = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, LAST_SPANS_S)


def trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers in which a caller's trace may be.

    Without its baggage, which nothing here reads: OpenTelemetry takes 0.1 s to split one of 8000 blanks.
    """
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name != b"baggage"}


def attributes(fields: Noted) -> dict[str, str | int | float | Sequence[str]]:
    """Fields of the access log as attributes; those of a mapping one by one, times aside, which spans have."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "timing_ms":
            continue
        if isinstance(value, dict):
            flat |= {f"{PREFIX}{name}.{key}": one for key, one in value.items()}
        else:
            flat[STANDARD.get(name, PREFIX + name)] = value
    return flat


def otlp_traces() -> Traces:
    """Traces that are sent over OTLP/HTTP, as the standard variables say.

    Raises:
        ValueError: a variable has a value that OpenTelemetry refuses.
    """
    return Traces(BatchSpanProcessor(OTLPSpanExporter()))
