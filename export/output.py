"""The folder that a bundle is written to: beside its place at first, so that it appears whole or not at all."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attenuator import bundle
from attenuator.errors import ExportError, printable
from attenuator.export.sentences import writing

__all__ = ["refuse_output", "replace", "staging_for"]

UNFINISHED, REPLACED = "unfinished", "replaced"
# What a bundle's folder may have; one with anything else is neither replaced nor removed.
BUNDLE_FILES = {
    *(bundle.MANIFEST, *bundle.REQUIRED_FILES, *bundle.WEIGHTS, bundle.TAUGHT_PROBE, bundle.CALIBRATION),
    *(bundle.PLOT, bundle.PARTIAL, bundle.REPORT),
}


def refuse_output(folder: Path) -> None:
    """Refuses to overwrite anything but a bundle or an empty folder.

    Args:
        folder: where a bundle is to be.

    Raises:
        ExportError: a file is there, a folder with files and no `bundle.json`, or a bundle beside other files.
    """
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"output '{folder}' is a file, must be a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / bundle.MANIFEST).is_file():
        raise ExportError(f"output '{folder}' is a folder that is not a bundle, must be a bundle, empty or new")
    others = sorted({path.name for path in folder.iterdir()} - BUNDLE_FILES) if folder.is_dir() else []
    if others:
        raise ExportError(f"output '{folder}' holds '{printable(others[0])}' beside a bundle, must hold a bundle alone")


@contextmanager
def staging_for(folder: Path) -> Iterator[Path]:
    """A folder beside the bundle's, in which the bundle is written; removed at the end, unless it was renamed.

    Those that killed processes left there are removed: a living one holds a lock on its own.

    Args:
        folder: the bundle's, resolved; missing parent folders are created.

    Yields:
        An empty folder on the same file system, so that `replace` is a rename.

    Raises:
        ExportError: it cannot be created there.
        AttenuatorError: the disk is full.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with locked(parent):  # no other process takes the new folder for one that was left
            for left in left_by("*", UNFINISHED, parent):
                remove_left(left)
            staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.{UNFINISHED}.", dir=parent))
            held = os.open(staging, os.O_RDONLY)
            lock(held)
    except OSError as error:  # a file in the place of a parent folder, no permission, a full disk
        raise ExportError(f"output '{folder}' cannot be written: {error.strerror}") from None
    try:
        staging.chmod(0o755)
        with writing(f"output '{folder}'"):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(held)


def lock(held: int) -> bool:
    """Locks an open folder, unless another process does or the file system has no locks; whether it is locked now."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within it no other process is in here with the same folder, where the file system has locks."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def left_by(name: str, kind: str, parent: Path) -> list[Path]:
    """Folders that exports of bundles of some name, a pattern, have made beside them: `mkdtemp` ends their names."""
    made = re.compile(rf"\..+\.{kind}\.[a-z0-9_]{{8}}", re.DOTALL)
    return [path for path in parent.glob(f".{name}.{kind}.*") if made.fullmatch(path.name)]


def remove_left(staging: Path) -> None:
    """Removes what an export was writing, unless it still is."""
    try:
        held = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # a file, a link, or gone
        return
    try:
        if lock(held):
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(held)


def replace(staging: Path, folder: Path) -> None:
    """Moves the finished bundle to its place; an older bundle there stays whole until then.

    Args:
        staging: the finished bundle, beside `folder`; gone afterwards.
        folder: its place; whatever is there is removed, so call `refuse_output` first.

    Raises:
        OSError: it cannot be renamed; an older bundle is then back in its place.
    """
    prefix = f".{folder.name}.{REPLACED}."
    if not folder.exists():
        staging.rename(folder)
    else:
        old = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        os.replace(folder, old)
        try:
            staging.rename(folder)
        except OSError:
            os.replace(old, folder)
            raise
    for old in left_by(glob.escape(folder.name), REPLACED, folder.parent):  # left by a process that was killed here
        shutil.rmtree(old, ignore_errors=True)
    remove_older(folder)


def remove_older(folder: Path) -> None:
    """Removes what killed exports of versions up to 0.3 left of this bundle: `.NAME.` and eight characters."""
    name = re.compile(rf"\.{re.escape(folder.name)}(\.[a-z0-9_]{{8}}){{1,2}}")
    for left in folder.parent.iterdir():
        is_left = name.fullmatch(left.name) and left.is_dir() and not left.is_symlink()
        if is_left and {path.name for path in left.iterdir()} <= BUNDLE_FILES:
            shutil.rmtree(left, ignore_errors=True)
