"""Fixtures of the tests of clients and of commands: bundles, and a server of them with a key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from service import Service

KEY = "a-key-for-tests"


@pytest.fixture(scope="session")
def key() -> str:
    """What the server wants as a bearer token."""
    return KEY


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundle folder by model name."""
    return tiny.write_all(tmp_path_factory.mktemp("client-bundles"))


@pytest.fixture(scope="session")
def url(bundles: dict[str, Path]) -> Iterator[str]:
    """Address of a server of all bundles."""
    service = Service(bundles.values(), "--api-key", KEY)
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0, service.log()


@pytest.fixture(scope="session")
def narrow_url(bundles: dict[str, Path]) -> Iterator[str]:
    """Address of a server of one bundle that takes one request at a time."""
    service = Service([bundles["yoso"]], "--max-requests", "1")
    yield f"http://{service.host}:{service.port}"
    service.stop()
