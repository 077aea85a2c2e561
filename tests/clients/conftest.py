"""Bundles and a server that the tests of this folder share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))

from service import export_bundles, serving  # noqa: E402


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundle folder by model name."""
    return export_bundles(tmp_path_factory.mktemp("client-bundles"))


@pytest.fixture(scope="session")
def url(bundles: dict[str, Path]) -> Iterator[str]:
    """Address of a server of all bundles."""
    with serving(list(bundles.values())) as address:
        yield address
