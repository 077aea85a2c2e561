"""Traces: what the spans of requests say, and that they reach a receiver."""

import asyncio
import gzip
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from service import Service

from attenuator.errors import AttenuatorError, EngineError
from attenuator.runtime import Model
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app, observe
from attenuator.serve.engine import Engine
from attenuator.serve.observe.otel import Traces
from attenuator.serve.observe.tracing import open_traces
from attenuator.serve.settings import ServeSettings

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
BODY = {"inputs": ["good film", "a bad plot"], "num_hashes": 8}


def spans_of(folder: Path, ask: Callable[[httpx.AsyncClient], Any]) -> list[ReadableSpan]:
    """The spans of a service that was asked something."""
    exporter = InMemorySpanExporter()

    async def scenario() -> None:
        settings = ServeSettings(threads=1)
        engine = Engine(settings)
        metrics = observe(engine, settings, Traces(SimpleSpanProcessor(exporter)))
        await engine.start([folder])
        try:
            app = create_app(engine, settings, KeyRing(None, None, None), metrics)
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await ask(client)
        finally:
            await engine.stop()

    asyncio.run(scenario())
    return list(exporter.get_finished_spans())


def by_name(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    named = {span.name: span for span in spans}
    assert len(named) == len(spans), "names are unique in this test"
    return named


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def test_a_request_has_a_span_for_each_phase_inside_its_callers_trace(
    bundles: dict[str, Path], models: dict[str, Model]
) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        headers = TRACEPARENT | {"X-Request-Id": "id-7"}
        assert (await client.post("/v1/classify", json=BODY, headers=headers)).status_code == 200
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200

    spans = by_name(spans_of(bundles["yoso"], ask))
    request = spans.pop("POST /v1/classify")
    assert request.kind == SpanKind.SERVER
    assert request.context is not None
    assert f"{request.context.trace_id:032x}" == TRACE
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CALLER
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/v1/classify",
        "http.response.status_code": 200,
        "attenuator.request_id": "id-7",
        "attenuator.model": "yoso",
        "attenuator.inputs": 2,
        "attenuator.tokens": 9,
        "attenuator.knobs.num_hashes": 8,
        "attenuator.chosen_by": "caller",
    }
    assert request.status.status_code == StatusCode.UNSET

    phases = [spans.pop(name) for name in ("tokenize", "queue", "compute")]
    assert not spans, "probes and scrapes have none"
    assert all(each.parent is not None and each.parent.span_id == request.context.span_id for each in phases)
    ends = [request.start_time, *(each.end_time for each in phases)]
    assert [each.start_time for each in phases] == ends[:3]
    assert ends[-1] is not None
    assert request.end_time is not None
    assert ends[-1] <= request.end_time


def test_a_callers_baggage_is_not_read(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting 8000 blanks takes OpenTelemetry 0.1 s, for which nobody else would be answered."""
    read: list[str] = []

    def split(pattern: str, header: str) -> list[str]:
        read.append(header)
        return []

    monkeypatch.setattr("opentelemetry.baggage.propagation.split", split)

    async def ask(client: httpx.AsyncClient) -> None:
        headers = TRACEPARENT | {"baggage": "a=b"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200

    [span] = spans_of(bundles["yoso"], ask)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert not read


def test_errors_are_said_and_texts_and_paths_never(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Model, rows: object, cancellation: object = None) -> None:
        raise EngineError("it failed")

    async def ask(client: httpx.AsyncClient) -> None:
        secret = "a secret text"
        assert (await client.post("/v1/classify", json={"inputs": secret, "secret": 1})).status_code == 422
        assert (await client.get(f"/a/{secret}?secret=1")).status_code == 404
        assert (await client.request("SECRET", "/v1/classify")).status_code == 405
        monkeypatch.setattr(Model, "run", fail)
        assert (await client.post("/v1/classify", json={"inputs": secret})).status_code == 500

    spans = spans_of(bundles["yoso"], ask)
    said = [(each.name, attributes(each)["http.response.status_code"], each.status.status_code) for each in spans]
    assert said == [
        ("POST /v1/classify", 422, StatusCode.UNSET),
        ("GET (none)", 404, StatusCode.UNSET),
        ("HTTP /v1/classify", 405, StatusCode.UNSET),
        ("POST /v1/classify", 500, StatusCode.ERROR),
    ]
    assert [attributes(each)["error.type"] for each in spans] == [
        "unknown_field",
        "not_found",
        "method_not_allowed",
        "engine_error",
    ]
    assert "secret" not in "".join(each.to_json() for each in spans).lower()


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """Address of an OTLP/HTTP receiver, and what reached it: paths and messages."""
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            content = self.rfile.read(int(self.headers["Content-Length"]))
            content = gzip.decompress(content) if self.headers["Content-Encoding"] == "gzip" else content
            received.append((self.path, ExportTraceServiceRequest.FromString(content)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_receiver(
    start: Callable[..., Service],
    receiver: tuple[str, list[tuple[str, ExportTraceServiceRequest]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over OTLP/HTTP, from a service that is stopped right after its answer."""
    address, received = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{address}/own/path")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    one = start("--otel", "--log-format", "json")
    one.client.headers.update(TRACEPARENT)
    one.good()
    assert json.loads(one.wait_for_log('"route"').splitlines()[-1])["trace_id"] == TRACE
    assert one.stop() == 0
    assert {path for path, _ in received} == {"/own/path"}
    resources = [each for _, message in received for each in message.resource_spans]
    named = {pair.key: pair.value.string_value for each in resources for pair in each.resource.attributes}
    assert (named["service.name"], named["deployment.environment"]) == ("attenuator", "test")
    spans = {span.name: span for each in resources for scope in each.scope_spans for span in scope.spans}
    assert spans["POST /v1/classify"].trace_id.hex() == TRACE
    assert sorted(spans) == ["POST /v1/classify", "compute", "queue", "tokenize"]


def test_the_environment_asks_too_and_without_a_receiver_requests_are_answered(
    start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    one = start()
    for _ in range(3):
        one.good()
    one.wait_for_log("ERROR", "opentelemetry")
    one.good()
    assert one.stop() == 0


def test_without_being_asked_there_are_none() -> None:
    assert open_traces(False, {}) is None
    assert open_traces(True, {"OTEL_SDK_DISABLED": "true"}) is None
    assert open_traces(True, {"OTEL_TRACES_EXPORTER": "none"}) is None


def test_a_missing_extra_is_one_sentence(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delitem(sys.modules, "attenuator.serve.observe.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(AttenuatorError, match=r"^--otel: .* pip install '\.\[otel\]' in a checkout$"):
        open_traces(True, {})
    assert open_traces(False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "pip install '.[otel]'" in caplog.text, "an injected variable does not stop the service"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
)
def test_what_it_cannot_follow_is_refused(variable: str, value: str) -> None:
    with pytest.raises(AttenuatorError, match=f"{variable} is '{value}', must be"):
        open_traces(True, {variable: value})
