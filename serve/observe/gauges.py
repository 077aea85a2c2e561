"""What the service holds at the moment, read when its metrics are scraped: queues, lanes, models, connections."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from attenuator.serve.observe.metrics import PREFIX, Description, Metrics, knob_ranges
from attenuator.serve.scheduling.requests import LANES, Entry, Lane

STATES = ("starting", "ready", "draining", "stopped")
Values = Mapping[tuple[str, ...], float]  # by the values of a gauge's labels


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
    tokens, seconds, of_keys = (
        Counter[tuple[str, ...]](),
        dict[tuple[str, ...], float](),
        dict[tuple[str, ...], float](),
    )
    of_lanes: dict[tuple[str, ...], float] = {(lane,): 0.0 for lane in LANES}
    for lane, entry in waiting:
        labels = (entry.job.model.manifest.name, knob_ranges(entry.job.rows[entry.index].knobs), lane)
        tokens[labels] += entry.tokens
        key = (entry.job.flow.key, entry.job.flow.priority, lane)
        for place, sums in ((labels, seconds), ((lane,), of_lanes), (key, of_keys)):
            sums[place] = sums.get(place, 0.0) + entry.seconds
    return {
        "queue_tokens": tokens,
        "queue_predicted_seconds": seconds,
        "lane_queue_predicted_seconds": of_lanes,
        "key_queue_predicted_seconds": of_keys,
    }
