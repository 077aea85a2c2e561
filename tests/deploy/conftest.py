"""Bundles, and a server of them on which every metric has counted something."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from keyed_service import bundles
from monitoring import DESCRIBED, KEYS, Exported, ask
from prometheus_client.parser import text_string_to_metric_families
from service import Service

from attenuator.api import ChosenBy

__all__ = ["bundles"]


@pytest.fixture(scope="session")
def busy(bundles: dict[str, Path]) -> Iterator[Service]:
    """A server with keys, brownouts and comparisons, whose every feature is in use."""
    flags = ("--shadow-share", "1", "--brownout-to", "num_hashes=1", "--brownout-target-ms", "0.01")
    one = Service([bundles["yoso"]], *flags, "--api-keys", json.dumps(KEYS))
    ask(one)
    end = time.monotonic() + 20
    while 'answer="' not in one.client.get("/metrics").text:
        assert time.monotonic() < end, "no text ran again at the exact value"
        time.sleep(0.05)
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="session")
def exported(busy: Service) -> Exported:
    """What the running server exports. Metrics without a value yet have the labels that are documented."""
    labels: dict[str, set[str]] = {}
    values: dict[str, set[str]] = defaultdict(set, chosen_by=set(get_args(ChosenBy)))
    for family in text_string_to_metric_families(busy.client.get("/metrics").text):
        described = DESCRIBED.get(family.name) or DESCRIBED.get(f"{family.name}_total")
        if described is not None and not family.samples:
            labels[described.name] = set(described.labels)
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
            for label, value in sample.labels.items():
                values[label].add(value)
    return Exported(labels, values)
