"""Metrics for Prometheus, in base units, whose labels never hold a text or a caller's own word.

Requests are counted from the fields of their line in the access log, batches by the lanes; what the service holds at
the moment, queues, lanes, models, connections, is read when the metrics are scraped (`Gauges`).

A run pushes what counts it out of the processor's caches, and fetching that again takes longer than counting. So
requests and batches are counted a few times a second, and before a scrape, those since the last time in one go.
"""

import asyncio
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client import exposition as text
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue
from attenuator.serve.events import BatchRun, Listeners, Noted
from attenuator.serve.scheduling.requests import LANES, Entry, Lane

log = logging.getLogger(__name__)

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
FLOAT_RANGES = 4  # of a knob's values, of equal width, from 0 to its highest one
WHOLE_BASE = 4  # a range of whole numbers ends at a power of this
COUNT_EVERY_S = 0.25
MOST_UNCOUNTED = 64  # which take about 2 ms of the event loop
STATES = ("starting", "ready", "draining", "stopped")
Values = Mapping[tuple[str, ...], float]  # by the values of a gauge's labels


class Description(NamedTuple):
    """A metric as `docs/reference/metrics.md` lists it; its name lacks the suffixes of a histogram's series."""

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
        shadowed: the count of texts that ran again, by model, knobs, tokens, and `same` or `other`.
        shadow_dropped: the count of those that were drawn and did not, by model and reason.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a series that doubles every counter, and that hardly anyone reads
        self.registry = CollectorRegistry(auto_describe=False)
        self.described: list[Description] = []
        self._uncounted: list[Callable[[], None]] = []
        self.before_scrape: list[Callable[[], None]] = [self._count]
        self._writing: dict[str, asyncio.Task[bytes]] = {}
        ProcessCollector(registry=self.registry)
        self._add_those_of_requests()
        self._add_those_of_batches()
        self._add_others()

    def listen(self, listeners: Listeners) -> None:
        """Listens to everything that is counted; requests and batches count up to `COUNT_EVERY_S` later."""
        listeners.request_ended.append(lambda *told: self._count_soon(partial(self.request_ended, *told)))
        listeners.batch_ran.append(lambda run: self._count_soon(partial(self.batch_ran, run)))
        listeners.batch_failed.append(lambda model, lane: self._failures(model.manifest.name, lane).inc())
        listeners.lane_restarted.append(lambda lane: self._restarts(lane).inc())
        listeners.session_restarted.append(lambda model: self._sessions(model.manifest.name).inc())

    def _count_soon(self, count: Callable[[], None]) -> None:
        if not self._uncounted:
            asyncio.get_running_loop().call_later(COUNT_EVERY_S, self._count)
        self._uncounted.append(count)
        if len(self._uncounted) == MOST_UNCOUNTED:
            self._count()

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for count in uncounted:
            try:
                count()
            except Exception:  # the others count
                log.exception("a request or a batch could not be counted")

    def request_ended(self, route: str, status: int, seconds: float, fields: Noted) -> None:
        """Counts a request, as `Listeners.request_ended` tells of it."""
        self._http_requests(route, status).inc()
        self._http_seconds(route).observe(seconds)
        if "error_type" in fields:
            self.refused(fields["error_type"])
        if "key" in fields:
            self._keyed(fields["key"], status).inc()
        if status in CANCELLED:
            self._cancelled(fields.get("model", ""), CANCELLED[status]).inc()
        if status == 200 and "steps" in fields:
            self._escalated(fields["model"], min(fields["steps"], MOST_STEPS)).inc()
        if status == 200 and "timing_ms" in fields:
            labels = (fields["model"], knob_ranges(fields["knobs"]))
            self._answers(*labels, fields["chosen_by"]).inc()
            self._inputs(*labels).inc(fields["inputs"])
            self._tokens(*labels).inc(fields["tokens"])
            for phase, took in self._phases.items():
                took(*labels).observe(fields["timing_ms"][phase] / 1e3)

    def refused(self, error_type: str) -> None:
        """Counts an error answer."""
        self._refusals(error_type).inc()

    def batch_ran(self, run: BatchRun) -> None:
        """Counts a batch that ran; its knobs are `mixed` where its requests have different ranges."""
        ranges = set(map(knob_ranges, run.settings))
        labels = (run.model.manifest.name, ranges.pop() if len(ranges) == 1 else MIXED, run.lane)
        self._batch_predicted(*labels).inc(run.predicted_s)
        self._batch_tokens(*labels).observe(run.tokens)
        self._batch_sequences(*labels).observe(run.sequences)
        self._batch_seconds(*labels).observe(run.seconds)
        self._batch_ratio(*labels).observe(run.seconds / run.predicted_s)
        predicted_s = sum(run.shares.values())
        for place, share_s in run.shares.items():
            self._computed(*place).inc(run.seconds * share_s / predicted_s)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The metrics as they are scraped; thousands of series take tens of milliseconds, so a thread writes them.

        Scrapes at the same time get the same text.

        Gives body and Content-Type: Prometheus' text format, or OpenMetrics where the `Accept` header has it.
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

    def _add_those_of_requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self._http_requests = counter(
            "http_requests", "Requests by route and status; 499 where the client left.", "route", "status"
        )
        self._http_seconds = histogram("http_request_seconds", "Time from header to answer.", SECONDS, "route")
        labels = ("model", "knobs")
        self._answers = counter("requests", "Requests answered, by who chose their knobs.", *labels, "chosen_by")
        self._inputs = counter("sequences", "Inputs of the requests answered.", *labels)
        self._tokens = counter("tokens", "Tokens of the requests answered.", *labels)
        phases = {
            "tokenize": "Time of an answered request from header to tokens.",
            "queue": "Time that an answered request waited for its first batch.",
            "compute": "Time of an answered request from its first batch to its last result.",
        }
        self._phases = {name: histogram(f"{name}_seconds", doc, SECONDS, *labels) for name, doc in phases.items()}

    def _add_those_of_batches(self) -> None:
        counter, histogram = self._counter, self._histogram
        of_lane = ("model", "knobs", "lane")
        self._batch_tokens = histogram("batch_tokens", "Tokens of a batch.", TOKENS, *of_lane)
        self._batch_sequences = histogram("batch_sequences", "Sequences of a batch.", SEQUENCES, *of_lane)
        self._batch_seconds = histogram("batch_seconds", "Time that a batch took.", SECONDS, *of_lane)
        self._batch_ratio = histogram(
            "batch_prediction_ratio", "Time that a batch took, divided by its predicted time.", RATIOS, *of_lane
        )
        self._batch_predicted = counter("batch_predicted_seconds", "Predicted time of the batches that ran.", *of_lane)

    def _add_others(self) -> None:
        counter = self._counter
        self._refusals = counter(
            "refusals", "Error answers by kind, also those to what is not valid HTTP.", "error_type"
        )
        self._computed = counter(
            "key_compute_seconds",
            "Time that batches took, shared out by predicted time; key is empty where there are not several.",
            "key",
            "priority",
        )
        self._keyed = counter("key_requests", "Requests by the name of their API key.", "key", "status")
        self._cancelled = counter(
            "cancelled_requests", "Requests whose work was cancelled: client_left or deadline.", "model", "reason"
        )
        self._failures = counter("batch_failures", "Batches on which ONNX Runtime failed.", "model", "lane")
        self._restarts = counter("lane_restarts", "Times that a lane had died and was started again.", "lane")
        self._sessions = counter(
            "session_restarts", "Times that a model's session was made again after a failure.", "model"
        )
        self._escalated = counter(
            "escalated_requests", "Requests with escalate, by how many settings ran.", "model", "steps"
        )
        self.shadowed = counter(
            "shadow_texts",
            "Texts that ran again at the bundle's own exact value, by whether the answer was the same or other.",
            "model",
            "knobs",
            "tokens",
            "answer",
        )
        self.shadow_dropped = counter(
            "shadow_dropped_texts",
            "Texts drawn to run again that did not: full, interrupted, unloaded or failed.",
            "model",
            "reason",
        )

    # Finding a series by its labels takes longer than counting, so that each is found once.
    def _counter(self, name: str, doc: str, *labels: str) -> Callable[..., Counter]:
        self.described.append(Description(f"{PREFIX}{name}_total", "counter", labels, doc))
        return functools.cache(Counter(f"{PREFIX}{name}", doc, labels, registry=self.registry).labels)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Histogram]:
        self.described.append(Description(PREFIX + name, "histogram", labels, doc))
        return functools.cache(Histogram(PREFIX + name, doc, labels, buckets=buckets, registry=self.registry).labels)


def gauge(name: str, doc: str, *labels: str) -> Description:
    """The description of a value that goes up and down."""
    return Description(PREFIX + name, "gauge", labels, doc)


GAUGES = (
    gauge("queue_tokens", "Tokens that wait for a batch.", "model", "knobs", "lane"),
    gauge(
        "queue_predicted_seconds",
        "Predicted time of the sequences that wait for a batch.",
        "model",
        "knobs",
        "lane",
    ),
    gauge(
        "lane_queue_predicted_seconds",
        "Predicted time of the sequences that wait, 0 where none do: what replicas are scaled on.",
        "lane",
    ),
    gauge(
        "key_queue_predicted_seconds",
        "Predicted time of the sequences that wait; key is empty where there are not several.",
        "key",
        "priority",
        "lane",
    ),
    gauge("running_sequences", "Sequences of the batch that runs.", "lane"),
    gauge("requests_in_progress", "Requests whose body has arrived and whose answer is not made yet."),
    gauge(
        "brownout_level",
        "How far load lowers knobs that may be lowered: 0 not at all, 1 to their floors; the highest of all API keys.",
    ),
    gauge("service_state", "1 for the state that the service is in, 0 for the others.", "state"),
    gauge("ready", "1 while GET /health/ready answers 200."),
    gauge(
        "models",
        "1 for every loaded model: serving, or draining where it only answers what has begun.",
        "model",
        "revision",
        "device",
        "state",
    ),
    gauge("build_info", "Always 1; the label names the version.", "version"),
    gauge("shadow_waiting_texts", "Texts that wait to run again at the exact value."),
    gauge(
        "agreement_low",
        "1 where live answers agree with the bundle's own exact ones less often than calibration measured, 0 where "
        "they do not; absent where too few were compared. What int8, fp16 and bf16 change in exact answers is not in "
        "it.",
        "model",
        "knobs",
        "tokens",
    ),
    gauge("connections", "Open connections."),
    gauge("connection_limit", "Connections that may be open."),
)
REMEMBERED = ("queue_tokens", "queue_predicted_seconds", "key_queue_predicted_seconds")


class Gauges(Collector):
    """What some part of the service held when its metrics were scraped last."""

    def __init__(self, metrics: Metrics, read: Callable[[], Mapping[str, Values]]) -> None:
        """Adds them to the metrics; `read` gives the values by gauge, on the event loop."""
        self._read = read
        self._held: dict[str, Values] = {}
        metrics.registry.register(self)
        metrics.before_scrape.append(self._take)

    def collect(self) -> Iterator[Metric]:
        """One family a metric; a thread writes them."""
        for one in GAUGES:
            held = self._held.get(one.name.removeprefix(PREFIX))
            if held is not None:
                family = GaugeMetricFamily(one.name, one.doc, labels=one.labels)
                for labels, value in held.items():
                    family.add_metric(labels, value)
                yield family

    def _take(self) -> None:
        held = dict(self._read())
        for name in held.keys() & set(REMEMBERED):  # a queue that is empty again is 0, not absent
            held[name] = dict(sorted({**dict.fromkeys(self._held.get(name, ()), 0.0), **held[name]}.items()))
        self._held = held


def waiting_values(waiting: Iterable[tuple[Lane, Entry]]) -> dict[str, Values]:
    """The gauges of the rows that wait, which come with their lanes."""
    tokens, seconds, of_keys, of_lanes = (dict[tuple[str, ...], float]() for _ in range(4))
    of_lanes |= {(lane,): 0.0 for lane in LANES}
    for lane, entry in waiting:
        labels = (entry.job.model.manifest.name, knob_ranges(entry.job.rows[entry.index].knobs), lane)
        tokens[labels] = tokens.get(labels, 0) + entry.tokens
        key = (entry.job.flow.key, entry.job.flow.priority, lane)
        for place, sums in ((labels, seconds), ((lane,), of_lanes), (key, of_keys)):
            sums[place] = sums.get(place, 0.0) + entry.seconds
    return {
        "queue_tokens": tokens,
        "queue_predicted_seconds": seconds,
        "lane_queue_predicted_seconds": of_lanes,
        "key_queue_predicted_seconds": of_keys,
    }


def knob_ranges(knobs: Mapping[str, KnobValue]) -> str:
    """A setting as a few ranges, such as `a=17-64,b=exact`: a metric keeps every label that it ever had.

    One range a knob, in the order given; `none` for a model without knobs.
    """
    ranges = ""
    for name, value in knobs.items():
        ranges += f"{',' if ranges else ''}{name}={knob_range(name, value)}"
    return ranges or "none"


def knob_range(name: str, value: KnobValue) -> str:
    """The range of one value: `exact`, or its lowest and highest value."""
    knob = KNOBS[name]
    if value == knob.exact:
        return "exact"
    if knob.dtype == "float":
        width = knob.high / FLOAT_RANGES
        index = max(0, min(FLOAT_RANGES, math.ceil(value / width)) - 1)  # a range includes its highest value
        return f"{index * width:g}-{(index + 1) * width:g}"
    highest = 1
    while highest < value:
        highest *= WHOLE_BASE
    lowest = highest // WHOLE_BASE + 1
    return f"{lowest}-{highest}" if lowest < highest else str(highest)
