"""A file of finished work that a run which was cut short goes on from: JSON lines, the first of them saying what of."""

import contextlib
import json
import os
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from attenuator.errors import AttenuatorError, InvalidRequest

try:
    import fcntl
except ImportError:  # not on Windows, where two runs at once go unnoticed
    fcntl = None  # type: ignore[assignment]


def forget(path: Path, names: Collection[str]) -> None:
    """Empties the file of an earlier run, if there is one.

    Args:
        path: of the file.
        names: of what its first line says.

    Raises:
        InvalidRequest: it is no such file, is in use, or cannot be written.
    """
    try:
        with path.open("r+b") as file:
            _reserve(file, path)
            _empty(file, path, names)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None


def _reserve(file: IO[bytes], path: Path) -> None:
    """Locks a file for this process, until it is closed; refuses pipes and devices, which may never end."""
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise InvalidRequest(f"{path} is a pipe or a device, must be a file")
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(f"{path} is in use by another run: wait for it, or give another file") from None


def _empty(file: IO[bytes], path: Path, names: Collection[str]) -> None:
    """Empties a file, unless its first line shows that no run of this kind wrote it."""
    file.seek(0)
    first = file.readline()
    try:
        is_ours = not first or json.loads(first).keys() == set(names)
    except (ValueError, AttributeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise InvalidRequest(f"{path} holds no earlier run, so it is not emptied: give another file, or remove it")
    file.truncate(0)


class Journal:
    """Records of a run, each with the operating system once `append` returns; safe to share between threads.

    They outlive a process that is killed; a machine that loses power may lose the last of them. A line that was cut
    off as an earlier run ended is dropped. As a context it closes the file at the end.

    Attributes:
        path: of the file.
        resumed: whether it holds what an earlier run did.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, other: str, advice: str, restart: bool = False) -> None:
        """Opens the file, or begins it.

        Args:
            path: of the file.
            about: what the run is, in JSON's types; an earlier run's records are of use only where it is the same.
            other: what the error says of a file of another run, such as `is of a run with other options`.
            advice: what the error says to do, such as `give another file`.
            restart: forgets an earlier run.

        Raises:
            InvalidRequest: the file is of another run, is damaged, in use, or cannot be written.
            AttenuatorError: its first line cannot be written.
        """
        self.path = path
        self._advice = advice
        self._lock = threading.Lock()
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror or error}") from None
        try:
            _reserve(self._file, path)
            if restart:
                _empty(self._file, path, about)
            end = self._whole_lines()
            # Nothing is cut off before the file has proved to be one of this run.
            self.resumed = end > 0
            is_same = self.at(0) == json.loads(json.dumps(about)) if self.resumed else self._is_cut_off(about)
            if not is_same:
                raise InvalidRequest(f"{path} {other}: {advice}")
            self._file.truncate(end)
            if not self.resumed:
                self.append(about)
        except OSError as error:
            self.close()
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None
        except AttenuatorError:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file."""
        self.close()

    def _whole_lines(self) -> int:
        """Where the last whole line ends, in bytes."""
        self._file.seek(0)
        return sum(len(line) for line in self._file if line.endswith(b"\n"))

    def _is_cut_off(self, about: Mapping[str, Any]) -> bool:
        """Whether a file without a whole line is empty, or ended within the first line of the same run."""
        first = _line(about)
        self._file.seek(0)
        return first.startswith(self._file.read(len(first)))

    def damaged(self) -> InvalidRequest:
        """Closes the file; returns the error that it does not hold what a run writes."""
        self.close()
        return InvalidRequest(f"{self.path} is damaged: {self._advice}")

    def _read(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise self.damaged() from None

    def at(self, place: int) -> Any:
        """The record at a place that `records` gave.

        Raises:
            InvalidRequest: the line there is not JSON.
        """
        with self._lock:
            self._file.seek(place)
            line = self._file.readline()
        return self._read(line)

    def records(self) -> Iterator[tuple[int, Any]]:
        """The records of an earlier run, each with its place in the file; to be read before the first `append`.

        Raises:
            InvalidRequest: a line is not JSON.
        """
        place = 0
        with self.path.open("rb") as lines:
            for line in lines:
                if place:
                    yield place, self._read(line)
                place += len(line)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record in JSON's types.

        Raises:
            AttenuatorError: it cannot be written: the disk is full, for instance. The records before it are there.
        """
        with self._lock:
            try:
                self._file.write(_line(record))
                self._file.flush()
            except OSError as error:
                raise AttenuatorError(
                    f"{self.path} cannot be written to its end: {error.strerror}; what it holds is kept"
                ) from None

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # of a record that `append` could not write
            self._file.close()

    def remove(self) -> None:
        """Removes the file: everything is done."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
