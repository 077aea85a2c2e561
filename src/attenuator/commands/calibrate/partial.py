"""What an interrupted calibration has measured, so that the next one goes on where it ended.

A file of JSON lines beside `calibration.json`: first what was measured on what, then the logits of one batch a line, as
little-endian float32 in base64. A line that was cut off as the run ended is measured again.
"""

import base64
import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from attenuator.errors import InvalidRequest

NAME = "calibration.partial.jsonl"

Logits = npt.NDArray[np.float32]


class PartialResults:
    """Logits by setting and batch, in memory and in the file.

    As a context it closes the file at the end, and leaves it for a later run unless `remove` was called.

    Attributes:
        path: of the file.
    """

    def __init__(self, folder: Path, about: dict[str, Any], labels: int, *, restart: bool) -> None:
        """Opens the file, or begins it.

        Args:
            folder: the bundle.
            about: what is measured on what; another run's results are of use only where it is the same.
            labels: of the bundle.
            restart: forgets an earlier run.

        Raises:
            InvalidRequest: the file is of another run, or cannot be written.
        """
        self.path = folder / NAME
        self._labels = labels
        self._done: dict[tuple[int, int], Logits] = {}
        try:
            if restart:
                self.path.unlink(missing_ok=True)
            end = self._read(about) if self.path.exists() else 0
            self._file = self.path.open("ab")
            self._file.truncate(end)
            if not end:
                self._write(about)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, about: dict[str, Any]) -> int:
        """Reads an earlier run's results; returns where its last whole line ends."""
        lines = self.path.read_bytes().split(b"\n")[:-1]
        try:
            same = not lines or json.loads(lines[0]) == json.loads(json.dumps(about))
            for line in lines[1:] if same else []:
                batch = json.loads(line)
                values = np.frombuffer(base64.b64decode(batch["logits"]), dtype="<f4")
                self._done[batch["setting"], batch["batch"]] = values.reshape(-1, self._labels)
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(f"{self.path} is damaged: give --restart to measure anew") from None
        if not same:
            raise InvalidRequest(
                f"{self.path} is of an interrupted run with another bundle revision, other data or other options: give "
                "--restart to forget it, or the options of that run to go on"
            )
        return sum(len(line) + 1 for line in lines)

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()

    def get(self, setting: int, batch: int) -> Logits | None:
        """Logits `[rows, labels]` of a batch that was measured, by the setting's place and the batch's; else None."""
        return self._done.get((setting, batch))

    def put(self, setting: int, batch: int, logits: Logits) -> None:
        """Keeps the logits `[rows, labels]` of a batch."""
        content = base64.b64encode(logits.astype("<f4").tobytes()).decode()
        self._write({"setting": setting, "batch": batch, "logits": content})
        self._done[setting, batch] = logits

    def remove(self) -> None:
        """Removes the file: everything is measured and written."""
        self.path.unlink(missing_ok=True)
