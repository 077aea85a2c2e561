"""One server with the tiny bundles for all tests; others on demand."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import tiny
from service import Service

from attenuator.runtime import Model, load


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.write_all(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def models(bundles: dict[str, Path]) -> dict[str, Model]:
    return {name: load(folder, check=False) for name, folder in bundles.items()}


@pytest.fixture(scope="session")
def service(bundles: dict[str, Path]) -> Iterator[Service]:
    started = Service(bundles.values())
    yield started
    assert started.stop() == 0, started.log()


@pytest.fixture
def start_with() -> Iterator[Callable[..., Service]]:
    """Starts a server with the given bundles and flags."""
    services: list[Service] = []

    def run(folders: Sequence[Path], *flags: str, service_class: type[Service] = Service) -> Service:
        services.append(service_class(folders, *flags))
        return services[-1]

    yield run
    for one in services:
        one.stop()


@pytest.fixture
def start(start_with: Callable[..., Service], bundles: dict[str, Path]) -> Callable[..., Service]:
    """Starts a server with one bundle and the given flags; one thread, so that slow requests are slow everywhere."""
    return lambda *flags, kind="yoso", **how: start_with([bundles[kind]], "--threads", "1", *flags, **how)
