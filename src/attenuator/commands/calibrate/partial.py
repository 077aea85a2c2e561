"""Results of an interrupted calibration, so that the next one goes on where it ended.

A file of JSON lines beside `calibration.json`: first what was measured on what, then the logits of one batch a line, as
little-endian float32 in base64. A line that was cut off as the run ended is measured again.
"""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import PARTIAL
from attenuator.journal import Journal

Logits = npt.NDArray[np.float32]


class PartialResults(Journal):
    """Logits by setting and batch, in memory and in the file; left for a later run unless `remove` was called."""

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
        self._done: dict[tuple[int, int], Logits] = {}
        super().__init__(
            folder / PARTIAL,
            about,
            other="is of an interrupted run with another bundle revision, other data or other options",
            advice="give --restart to forget it, or the options of that run to go on",
            restart=restart,
        )
        try:
            for _, batch in self.records():
                values = np.frombuffer(base64.b64decode(batch["logits"]), dtype="<f4")
                self._done[batch["setting"], batch["batch"]] = values.reshape(-1, labels)
        except (ValueError, KeyError, TypeError):
            raise self.damaged() from None

    def get(self, setting: int, batch: int) -> Logits | None:
        """Logits `[rows, labels]` of a batch that was measured, by the setting's place and the batch's; else None."""
        return self._done.get((setting, batch))

    def put(self, setting: int, batch: int, logits: Logits) -> None:
        """Keeps the logits `[rows, labels]` of a batch."""
        content = base64.b64encode(logits.astype("<f4").tobytes()).decode()
        self.append({"setting": setting, "batch": batch, "logits": content})
        self._done[setting, batch] = logits
