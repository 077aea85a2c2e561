"""Tiny bundles, made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import tiny

from attenuator.runtime import Model, load


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    made = {kind: tiny.write(root / kind, kind) for kind in tiny.KINDS}
    labels = [f"clause {index}" for index in range(33)]
    made["multi"] = tiny.write(root / "multi", "yoso", labels=labels, multi_label=True, pooling="mean")
    return made


@pytest.fixture(scope="session")
def models(bundles: dict[str, Path]) -> dict[str, Model]:
    return {name: load(folder, check=False) for name, folder in bundles.items()}
