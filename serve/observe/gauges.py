"""What the service holds at the moment, read when its metrics are scraped: queues, lanes, models, connections."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from attenuator import __version__
from attenuator.runtime import Model
from attenuator.serve.observe.metrics import PREFIX, Description, knob_ranges
from attenuator.serve.scheduling.requests import LANES, Entry, Lane

STATES = ("starting", "ready", "draining", "stopped")


HELD: list[Description] = []  # every gauge, as its page lists them


def gauge(name: str, doc: str, *labels: str) -> Description:
    """The description of a value that goes up and down."""
    HELD.append(Description(PREFIX + name, "gauge", labels, doc))
    return HELD[-1]


QUEUE_TOKENS = gauge("queue_tokens", "Tokens that wait for a batch.", "model", "knobs", "lane")
QUEUE_PREDICTED = gauge(
    "queue_predicted_seconds", "Predicted time of the sequences that wait for a batch.", "model", "knobs", "lane"
)
LANE_QUEUE_PREDICTED = gauge(
    "lane_queue_predicted_seconds",
    "Predicted time of the sequences that wait, 0 where none do: what replicas are scaled on.",
    "lane",
)
KEY_QUEUE_PREDICTED = gauge(
    "key_queue_predicted_seconds",
    "Predicted time of the sequences that wait; key is empty where there are not several.",
    "key",
    "priority",
    "lane",
)
RUNNING = gauge("running_sequences", "Sequences of the batch that runs.", "lane")
IN_PROGRESS = gauge("requests_in_progress", "Requests whose body has arrived and whose answer is not made yet.")
BROWNOUT = gauge(
    "brownout_level",
    "How far load lowers knobs that may be lowered: 0 not at all, 1 to their floors; the highest of all API keys.",
)
STATE = gauge("service_state", "1 for the state that the service is in, 0 for the others.", "state")
READY = gauge("ready", "1 while GET /health/ready answers 200.")
MODELS = gauge(
    "models",
    "1 for every loaded model: serving, or draining where it only answers what has begun.",
    "model",
    "revision",
    "device",
    "state",
)
BUILD = gauge("build_info", "Always 1; the label names the version.", "version")
SHADOW_WAITING = gauge("shadow_waiting_texts", "Texts that wait to run again at the exact value.")
AGREEMENT_LOW = gauge(
    "agreement_low",
    "1 where live answers agree with the bundle's own exact ones less often than calibration measured, 0 where they do "
    "not; absent where too few were compared. What int8, fp16 and bf16 change in exact answers is not in it.",
    "model",
    "knobs",
    "tokens",
)
WATCHED = gauge(
    "watched_bundles",
    "Bundles in the watched folder: serving, incomplete while files are missing, or refused, which the log explains.",
    "state",
)
CONNECTIONS = gauge("connections", "Open connections.")
CONNECTION_LIMIT = gauge("connection_limit", "Connections that may be open.")


def family(description: Description, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """A gauge's values by its labels' values."""
    metric = GaugeMetricFamily(description.name, description.doc, labels=description.labels)
    for labels, value in values:
        metric.add_metric(labels, value)
    return metric


def model_labels(model: Model) -> tuple[str, ...]:
    """The labels of a loaded model."""
    return (model.manifest.name, model.manifest.revision[:12], model.device_name)


class EngineGauges(Collector):
    """What a service held when its metrics were scraped last."""

    def __init__(self) -> None:
        self._families: list[Metric] = []
        self._known: set[tuple[str, str, str]] = set()  # a queue that is empty again is 0, not absent
        self._known_keys: set[tuple[str, str, str]] = set()

    def collect(self) -> Sequence[Metric]:
        """One family a metric, as they were taken last."""
        return self._families

    def take(
        self,
        *,
        waiting: Iterable[tuple[Lane, Entry]],
        running: Mapping[Lane, int],
        requests: int,
        brownout: float,
        state: str,
        ready: bool,
        models: Mapping[Model, str],
        shadow_waiting: int,
        agreement_low: Iterable[tuple[tuple[str, ...], float]],
        watched: Mapping[Literal["serving", "incomplete", "refused"], int],
    ) -> None:
        """Takes what the service holds now; on the event loop, before a thread writes the metrics.

        Args:
            waiting: rows that wait, by lane.
            running: sequences of the batch that runs, by lane.
            requests: in progress.
            brownout: the highest level.
            state: of the service.
            ready: whether requests are answered as they should be.
            models: every loaded model: `serving`, or `draining` where it only answers what has begun.
            shadow_waiting: texts that wait to run again at the exact value.
            agreement_low: values of that metric by its labels' values.
            watched: bundles in the watched folder, by state.
        """
        self._families = [
            *self._waiting(waiting),
            family(RUNNING, [((lane,), running[lane]) for lane in LANES]),
            family(IN_PROGRESS, [((), requests)]),
            family(BROWNOUT, [((), brownout)]),
            family(STATE, [((each,), each == state) for each in STATES]),
            family(READY, [((), ready)]),
            family(MODELS, [((*model_labels(model), use), 1) for model, use in models.items()]),
            family(BUILD, [((__version__,), 1)]),
            family(SHADOW_WAITING, [((), shadow_waiting)]),
            family(AGREEMENT_LOW, agreement_low),
            family(WATCHED, [((each,), count) for each, count in watched.items()]),
        ]

    def _waiting(self, waiting: Iterable[tuple[Lane, Entry]]) -> Iterator[Metric]:
        tokens: dict[tuple[str, str, str], float] = defaultdict(float)
        seconds: dict[tuple[str, str, str], float] = defaultdict(float)
        of_keys: dict[tuple[str, str, str], float] = defaultdict(float)
        of_lanes = dict.fromkeys(LANES, 0.0)
        for lane, entry in waiting:
            labels = (entry.job.model.manifest.name, knob_ranges(entry.job.rows[entry.index].knobs), lane)
            tokens[labels] += entry.tokens
            seconds[labels] += entry.seconds
            of_lanes[lane] += entry.seconds
            of_keys[entry.job.flow.key, entry.job.flow.priority, lane] += entry.seconds
        self._known |= set(tokens)
        self._known_keys |= set(of_keys)
        yield family(QUEUE_TOKENS, [(labels, tokens[labels]) for labels in sorted(self._known)])
        yield family(QUEUE_PREDICTED, [(labels, seconds[labels]) for labels in sorted(self._known)])
        yield family(LANE_QUEUE_PREDICTED, [((lane,), of_lanes[lane]) for lane in LANES])
        yield family(KEY_QUEUE_PREDICTED, [(labels, of_keys[labels]) for labels in sorted(self._known_keys)])


class ServerGauges(Collector):
    """The connections of a server."""

    def __init__(self, connections: Callable[[], tuple[int, int]]) -> None:
        """Takes what says how many connections are open, and how many may be."""
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        """One family a metric."""
        count, limit = self._connections()
        yield family(CONNECTIONS, [((), count)])
        yield family(CONNECTION_LIMIT, [((), limit)])
