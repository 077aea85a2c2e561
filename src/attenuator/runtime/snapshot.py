"""A private copy of a bundle, which is checked, loaded and then removed.

ONNX Runtime maps `model.onnx.data` as long as a session lives. Were that the bundle's own file, truncating it would end
the server, and writing over it would change answers under the old revision. The copy is deleted as soon as the session
has mapped it: nobody can change it any more, its pages need not stay in memory, and its disk space is freed when the
session ends.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attenuator.bundle import WEIGHTS
from attenuator.errors import BundleError

_copies: set[tempfile.TemporaryDirectory[str]] = set()


def remove_copies() -> None:
    """Removes what is there; for a process that ends without waiting for the threads that load."""
    for copy in tuple(_copies):
        shutil.rmtree(copy.name, ignore_errors=True)


def places() -> list[str]:
    """Folders that may hold the copy, best first: `/tmp` is in memory on many systems, `/var/tmp` is not."""
    candidates = [os.environ.get("TMPDIR") or "/var/tmp", "/tmp", "/dev/shm"]  # noqa: S108
    return list(dict.fromkeys(candidates))


@contextmanager
def private_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that only this user can enter, with room for a bundle's copy; removed at the end.

    Args:
        folder: the bundle.

    Yields:
        The folder.

    Raises:
        BundleError: no place has room, or none can be written to.
    """
    weights = [folder / name for name in WEIGHTS]
    size = sum(path.stat().st_size for path in weights if path.is_file())
    for place in places():
        try:
            if shutil.disk_usage(place).free < size:
                continue
            copy = tempfile.TemporaryDirectory(prefix="attenuator-", dir=place)
        except OSError:
            continue
        _copies.add(copy)
        with copy:
            yield Path(copy.name)
        _copies.discard(copy)
        return
    raise BundleError(
        f"bundle {folder} cannot be copied before it is loaded: {', '.join(places())} have no room for "
        f"{size / 1e6:.0f} MB or cannot be written to; set TMPDIR to a folder that has room"
    )
