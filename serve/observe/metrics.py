"""What the service counts for Prometheus, with base units and few label values: never a text or a caller's own word.

Requests are counted from the fields of their line in the access log, batches by the lanes; what the service holds at
the moment is read when the metrics are scraped (`gauges.py`).
"""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics

from attenuator.runtime import Model
from attenuator.serve.observe.knob_ranges import knob_ranges
from attenuator.serve.scheduling.requests import BatchRun, Lane

PREFIX = "attenuator_"
TEXT = (text.generate_latest, text.CONTENT_TYPE_PLAIN_0_0_4)
OPEN_METRICS = (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST)
OPEN_METRICS_TYPE = "application/openmetrics-text"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 4, 8)
CANCELLED = {499: "client_left", 504: "deadline"}
MIXED = "mixed"
MOST_STEPS = 8  # of a label; more count as so many


class Description(NamedTuple):
    """A metric as `docs/reference/metrics.md` lists it.

    Attributes:
        name: as it is scraped, without the suffixes of a histogram's series.
        kind: its type.
        labels: names of its labels.
        doc: what it measures.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    doc: str


class Metrics:
    """The metrics of one service, in a registry of their own.

    Attributes:
        registry: all collectors.
        described: the metrics that are counted here.
        before_scrape: called on the event loop before a thread writes the metrics.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a series that doubles every counter, and that hardly anyone reads
        self.registry = CollectorRegistry(auto_describe=False)
        self.described: list[Description] = []
        self.before_scrape: list[Callable[[], None]] = []
        self._writing: dict[str, asyncio.Task[bytes]] = {}
        ProcessCollector(registry=self.registry)
        self._count_http = self._http_counts()
        self._count_answer = self._answer_counts()
        self._count_batch = self._batch_counts()
        self._refusals = self._counter(
            "refusals", "Error answers by kind, also those to what is not valid HTTP.", "error_type"
        )
        self._computed = self._counter(
            "key_compute_seconds",
            "Time that batches took, shared out by predicted time; key is empty where there are not several.",
            "key",
            "priority",
        )
        self._keyed = self._counter("key_requests", "Requests by the name of their API key.", "key", "status")
        self._cancelled = self._counter(
            "cancelled_requests", "Requests whose work was cancelled: client_left or deadline.", "model", "reason"
        )
        self._failures = self._counter("batch_failures", "Batches on which ONNX Runtime failed.", "model", "lane")
        self._restarts = self._counter("lane_restarts", "Times that a lane had died and was started again.", "lane")
        self._sessions = self._counter(
            "session_restarts", "Times that a model's session was made again after a failure.", "model"
        )
        self._escalated = self._counter(
            "escalated_requests", "Requests with escalate, by how many settings ran.", "model", "steps"
        )
        self._shadowed = self._counter(
            "shadow_texts",
            "Texts that ran again at the exact value, by whether the answer was the same or other.",
            "model",
            "knobs",
            "tokens",
            "answer",
        )
        self._shadow_dropped = self._counter(
            "shadow_dropped_texts",
            "Texts drawn to run again that did not: full, interrupted, unloaded or failed.",
            "model",
            "reason",
        )

    def request_ended(self, route: str, status: int, seconds: float, fields: Mapping[str, Any]) -> None:
        """Counts a request.

        Args:
            route: the route's pattern, not the path that was asked for.
            status: of its answer.
            seconds: from its header to its answer's end.
            fields: of its line in the access log.
        """
        self._count_http(route, status)(seconds)
        if "error_type" in fields:
            self.refused(fields["error_type"])
        if "key" in fields:
            self._keyed.labels(fields["key"], status).inc()
        if status in CANCELLED:
            self._cancelled.labels(fields.get("model", ""), CANCELLED[status]).inc()
        if status == 200 and "steps" in fields:
            self._escalated.labels(fields["model"], min(fields["steps"], MOST_STEPS)).inc()
        if status == 200 and "timing_ms" in fields:
            count = self._count_answer(fields["model"], knob_ranges(fields["knobs"]), fields["chosen_by"])
            count(fields["inputs"], fields["tokens"], fields["timing_ms"])

    def refused(self, error_type: str) -> None:
        """Counts an error answer."""
        self._refusals.labels(error_type).inc()

    def batch_ended(self, run: BatchRun) -> None:
        """Counts a batch that ran; its knobs are `mixed` where its requests have different ranges."""
        ranges = {knob_ranges(knobs) for knobs in run.settings}
        self._count_batch(run.model.manifest.name, ranges.pop() if len(ranges) == 1 else MIXED, run.lane)(run)
        predicted_s = sum(run.shares.values())
        for place, share_s in run.shares.items():
            self._computed.labels(*place).inc(run.seconds * share_s / predicted_s)

    def batch_failed(self, model: Model, lane: Lane) -> None:
        """Counts a batch on which ONNX Runtime failed."""
        self._failures.labels(model.manifest.name, lane).inc()

    def lane_restarted(self, lane: Lane) -> None:
        """Counts a lane that was started again."""
        self._restarts.labels(lane).inc()

    def session_restarted(self, model: Model) -> None:
        """Counts a session that was made again."""
        self._sessions.labels(model.manifest.name).inc()

    def shadow_compared(self, model: str, knobs: str, tokens: str, *, agreed: bool) -> None:
        """Counts a live answer that was compared with the exact one."""
        self._shadowed.labels(model, knobs, tokens, "same" if agreed else "other").inc()

    def shadow_dropped(self, model: str, reason: str) -> None:
        """Counts a text that was drawn for comparison and not compared."""
        self._shadow_dropped.labels(model, reason).inc()

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as they are scraped; thousands of series take tens of milliseconds, so a thread writes them.

        Scrapes at the same time get the same text.

        Args:
            accept: the request's `Accept` header.

        Returns:
            Body and Content-Type: Prometheus' text format, or OpenMetrics where it is accepted.
        """
        # The library's own choice fails on versions that are no numbers.
        encode, content_type = OPEN_METRICS if OPEN_METRICS_TYPE in accept.lower() else TEXT
        if content_type not in self._writing:
            for read in self.before_scrape:
                read()
            writing = asyncio.create_task(asyncio.to_thread(encode, self.registry))
            writing.add_done_callback(lambda _: self._writing.pop(content_type))
            self._writing[content_type] = writing
        return await asyncio.shield(self._writing[content_type]), content_type

    def _http_counts(self) -> Callable[[str, int], Callable[[float], None]]:
        total = self._counter(
            "http_requests", "Requests by route and status; 499 where the client left.", "route", "status"
        )
        seconds = self._histogram("http_request_seconds", "Time from header to answer.", SECONDS, "route")

        @functools.cache  # finding a series by its labels takes longer than counting
        def of_series(route: str, status: int) -> Callable[[float], None]:
            one, took = total.labels(route, status), seconds.labels(route)

            def count(request_s: float) -> None:
                one.inc()
                took.observe(request_s)

            return count

        return of_series

    def _answer_counts(self) -> Callable[[str, str, str], Callable[[int, int, Mapping[str, float]], None]]:
        labels = ("model", "knobs")
        total = self._counter("requests", "Requests answered, by who chose their knobs.", *labels, "chosen_by")
        inputs = self._counter("sequences", "Inputs of the requests answered.", *labels)
        tokens = self._counter("tokens", "Tokens of the requests answered.", *labels)
        docs = {
            "tokenize": "Time of an answered request from header to tokens.",
            "queue": "Time that an answered request waited for its first batch.",
            "compute": "Time of an answered request from its first batch to its last result.",
        }
        phases = {name: self._histogram(f"{name}_seconds", doc, SECONDS, *labels) for name, doc in docs.items()}

        @functools.cache
        def of_series(model: str, knobs: str, chosen_by: str) -> Callable[[int, int, Mapping[str, float]], None]:
            one = total.labels(model, knobs, chosen_by)
            all_inputs, all_tokens = inputs.labels(model, knobs), tokens.labels(model, knobs)
            took = [(name, phase.labels(model, knobs)) for name, phase in phases.items()]

            def count(request_inputs: int, request_tokens: int, timing_ms: Mapping[str, float]) -> None:
                one.inc()
                all_inputs.inc(request_inputs)
                all_tokens.inc(request_tokens)
                for name, phase in took:
                    phase.observe(timing_ms[name] / 1e3)

            return count

        return of_series

    def _batch_counts(self) -> Callable[[str, str, Lane], Callable[[BatchRun], None]]:
        labels = ("model", "knobs", "lane")
        tokens = self._histogram("batch_tokens", "Tokens of a batch.", TOKENS, *labels)
        sequences = self._histogram("batch_sequences", "Sequences of a batch.", SEQUENCES, *labels)
        seconds = self._histogram("batch_seconds", "Time that a batch took.", SECONDS, *labels)
        ratio = self._histogram(
            "batch_prediction_ratio", "Time that a batch took, divided by its predicted time.", RATIOS, *labels
        )
        predicted = self._counter("batch_predicted_seconds", "Predicted time of the batches that ran.", *labels)

        @functools.cache
        def of_series(model: str, knobs: str, lane: Lane) -> Callable[[BatchRun], None]:
            own = (model, knobs, lane)
            all_predicted = predicted.labels(*own)
            observed = [one.labels(*own) for one in (tokens, sequences, seconds, ratio)]

            def count(run: BatchRun) -> None:
                all_predicted.inc(run.predicted_s)
                values = (run.tokens, run.sequences, run.seconds, run.seconds / run.predicted_s)
                for one, value in zip(observed, values, strict=True):
                    one.observe(value)

            return count

        return of_series

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        self.described.append(Description(f"{PREFIX}{name}_total", "counter", labels, doc))
        return Counter(f"{PREFIX}{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        self.described.append(Description(PREFIX + name, "histogram", labels, doc))
        return Histogram(PREFIX + name, doc, labels, buckets=buckets, registry=self.registry)
