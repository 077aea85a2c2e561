"""Results of an interrupted comparison, so that the next run goes on where it ended: a journal in the output folder.

After the line that says what is compared come records of four kinds: how many texts are run; what is known of a method
once its settings are timed; the logits of one batch at one of them, as little-endian float32 in base64; and that a
method is done.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.journal import Journal

NAME = "comparison.partial.jsonl"

Logits = npt.NDArray[np.float32]


class Progressed(Journal):
    """Results of a comparison, in memory and in its journal; left for a later run unless `remove` was called.

    Attributes:
        texts: how many texts are run; None as long as that is not settled.
        timed: what is known of each method whose settings are timed, by its name.
        done: names of the methods that are done.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, restart: bool) -> None:
        """Opens the journal, or begins it.

        Args:
            folder: of the output.
            about: what is compared on what.
            restart: forgets an earlier run.

        Raises:
            InvalidRequest: it is of another run, damaged or in use, or cannot be written.
        """
        super().__init__(
            folder / NAME,
            about,
            other="is of an interrupted comparison with another checkpoint, other data or other options",
            advice="give --restart to forget it, or the options of that run to go on",
            restart=restart,
        )
        self.texts: int | None = None
        self.timed: dict[str, dict[str, Any]] = {}
        self.done: set[str] = set()
        self._logits: dict[tuple[str, int, int], Logits] = {}
        try:
            for _, record in self.records():
                self._take(record)
        except (ValueError, KeyError, TypeError):
            raise self.damaged() from None

    def _take(self, record: Mapping[str, Any]) -> None:
        """Takes one record of an earlier run."""
        if "texts" in record:
            self.texts = int(record["texts"])
        elif "logits" in record:
            values = np.frombuffer(base64.b64decode(record["logits"]), dtype="<f4").reshape(record["shape"])
            self._logits[record["method"], record["setting"], record["batch"]] = values
        elif "timed" in record:
            self.timed[record["method"]] = dict(record["timed"])
        else:
            self.done.add(record["done"])

    def settle(self, texts: int) -> None:
        """Keeps how many texts are run."""
        self.texts = texts
        self.append({"texts": texts})

    def logits(self, method: str, setting: int, batch: int) -> Logits | None:
        """Logits `[rows, labels]` of a batch, by the method's name and the places of setting and batch; else None."""
        return self._logits.get((method, setting, batch))

    def put(self, method: str, setting: int, batch: int, logits: Logits) -> None:
        """Keeps the logits `[rows, labels]` of a batch."""
        content = base64.b64encode(logits.astype("<f4").tobytes()).decode()
        self.append(
            {"method": method, "setting": setting, "batch": batch, "shape": list(logits.shape), "logits": content}
        )
        self._logits[method, setting, batch] = logits

    def time(self, method: str, known: Mapping[str, Any]) -> None:
        """Keeps what is known of a method whose settings are timed, in JSON's types."""
        self.append({"method": method, "timed": known})
        self.timed[method] = dict(known)

    def finish(self, method: str) -> None:
        """Keeps that a method is done."""
        self.append({"done": method})
        self.done.add(method)
