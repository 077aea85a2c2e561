"""Tiny bundles, made once."""

from pathlib import Path

import pytest
import tiny

from attenuator.runtime import Model, load


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return tiny.write_all(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def models(bundles: dict[str, Path]) -> dict[str, Model]:
    return {name: load(folder, check=False) for name, folder in bundles.items()}
