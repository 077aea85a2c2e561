"""Bundles, and a server of them on which every metric has counted something."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keyed_service import bundles
from monitoring import KEYS, ask
from service import Service

__all__ = ["bundles"]


@pytest.fixture(scope="session")
def busy(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with keys, brownouts, comparisons and a watched folder, whose every feature is in use."""
    flags = ("--shadow-share", "1", "--brownout-to", "num_hashes=1", "--brownout-target-ms", "0.01")
    watched = tmp_path_factory.mktemp("watched")
    one = Service([bundles["yoso"]], *flags, "--watch", str(watched), "--api-keys", json.dumps(KEYS))
    ask(one)
    end = time.monotonic() + 20
    while 'answer="' not in one.client.get("/metrics").text:
        assert time.monotonic() < end, "no text ran again at the exact value"
        time.sleep(0.05)
    yield one
    assert one.stop() == 0
