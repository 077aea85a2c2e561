"""The metrics of several replicas as one page for Prometheus, each with the label `replica`."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

LABEL = "replica"


class Merged(Collector):
    """Metrics that were parsed, one family for each name."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """As they were given."""
        yield from self._families


def merged(pages: Mapping[str, str]) -> bytes:
    """One page in place of several.

    Args:
        pages: in Prometheus' text format, by replica.
    """
    families: dict[str, Metric] = {}
    for replica, page in pages.items():
        for parsed in text_string_to_metric_families(page):
            family = families.setdefault(parsed.name, Metric(parsed.name, parsed.documentation, parsed.type))
            for sample in parsed.samples:
                family.add_sample(sample.name, {LABEL: replica, **sample.labels}, sample.value, sample.timestamp)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Merged(list(families.values())))
    return generate_latest(registry)
