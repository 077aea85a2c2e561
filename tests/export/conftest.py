"""Small random checkpoints of every family, saved by the own code of the libraries, and their exports.

Each is made once for all processes that `make test` runs.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkpoints import CHECKPOINTS, save
from common.smaller_bundle import write_int8
from filelock import FileLock
from tracing import remember

from attenuator.export import export
from attenuator.export.selection import DROPPED

remember()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of this run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """A folder that the first caller of all processes makes, and the others wait for."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                make(Path(unfinished) / folder.name)
                (Path(unfinished) / folder.name).rename(folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint(shared: Path) -> Callable[[str], Path]:
    """Folder of a checkpoint by its name in `CHECKPOINTS`."""
    return lambda name: once(shared / "checkpoints" / name, partial(save, CHECKPOINTS[name]))


@pytest.fixture(scope="session")
def exported(shared: Path, checkpoint: Callable[[str], Path]) -> Callable[..., Path]:
    """Folder of the bundle of a checkpoint with an attention operator, in fp32 and dropping unless told otherwise."""

    def get(name: str, attention: str, precision: str = "fp32", merge: str = DROPPED) -> Path:
        source = str(checkpoint(name))

        def make(folder: Path) -> None:
            export(source, attention=attention, output=folder, precision=precision, merge=merge)

        place = precision if merge == DROPPED else f"{precision}-{merge}"
        return once(shared / "bundles" / place / f"{name}-{attention}", make)

    return get


@pytest.fixture(scope="session")
def rounded(shared: Path, exported: Callable[..., Path]) -> Callable[[str, str], Path]:
    """Folder of such a bundle with int8 linear layers, made of the one in fp32 without another trace.

    Its graph is the one that an export in int8 has (tests/export/test_int8.py).
    """

    def get(name: str, attention: str) -> Path:
        folder = shared / "bundles" / "rounded" / f"{name}-{attention}"
        return once(folder, partial(write_int8, exported(name, attention)))

    return get
