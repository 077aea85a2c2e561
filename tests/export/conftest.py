"""Small random checkpoints of every family, saved by the own code of the libraries, and their exports."""

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import CHECKPOINTS, save

from attenuator.export import export  # noqa: E402


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a checkpoint by its name in `CHECKPOINTS`."""
    root = tmp_path_factory.mktemp("checkpoints")
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = save(CHECKPOINTS[name], root / name)
        return folders[name]

    return get


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Callable[..., Path]:
    """Folder of the bundle of a checkpoint with an attention operator, in fp32 unless told otherwise."""
    root = tmp_path_factory.mktemp("bundles")
    folders: dict[tuple[str, str, str], Path] = {}

    def get(name: str, attention: str, precision: str = "fp32") -> Path:
        key = (name, attention, precision)
        if key not in folders:
            folder = root / precision / f"{name}-{attention}"
            export(str(checkpoint(name)), attention=attention, output=folder, precision=precision)
            folders[key] = folder
        return folders[key]

    return get
