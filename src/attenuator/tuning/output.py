"""The folder that a run writes: refused while it is in use by something else, and taken up where a run was stopped."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attenuator.errors import AttenuatorError, InvalidRequest

__all__ = ["READING", "RECORD", "OutputFolder", "next_command"]

# What the run was begun with, and how it ended.
RECORD = "training.json"
# Checkpoints of the unfinished run.
STEPS = "steps"
# Settings that say how a file is read: a run that goes on reads the same texts.
READING = ("column", "pair_column", "label_column", "format")


class OutputFolder:
    """The output of one run.

    Args:
        path: the folder; made where it does not exist.
        identity: what the run is begun with, by name: a run goes on with nothing else.
        resume: take up a run that was stopped; one that had not begun begins.

    Attributes:
        record: what is known of the run so far.

    Raises:
        InvalidRequest: it has files of something else, a run that is finished or was begun with something else, or, to
            begin anew, any files.
        AttenuatorError: it cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        before = self._before(resume)
        self.record: dict[str, Any] = {"identity": dict(identity), "finished": False, **before}
        for name in {**self.record["identity"], **identity}:
            began, value = self.record["identity"].get(name), identity.get(name)
            if began != value:
                raise InvalidRequest(
                    f"the run in '{path}' was begun with {name} {began!r} and cannot go on with {value!r}: give what "
                    "it was begun with, or another --output"
                )
        self.write()

    def _before(self, resume: bool) -> dict[str, Any]:
        path = self.path
        try:
            if not path.exists() or not any(path.iterdir()):
                return {}
            text = (path / RECORD).read_bytes() if (path / RECORD).exists() else b""
        except OSError as error:
            raise InvalidRequest(f"'{path}' cannot be a folder to write to: {error.strerror}") from None
        if not resume:
            hint = "; --resume goes on with the run that was stopped there" if text else ""
            raise InvalidRequest(f"'{path}' is not empty, must be a new folder or an empty one{hint}")
        try:
            record = json.loads(text)
            finished, identity, steps = record["finished"], record["identity"], record.get("steps", 1)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self.unreadable() from None
        if not isinstance(identity, dict) or type(steps) is not int or steps < 1:
            raise self.unreadable()
        if finished:
            raise InvalidRequest(f"the run in '{path}' is finished, must be one that was stopped")
        return dict(record)

    def unreadable(self) -> InvalidRequest:
        """The error of a record that was damaged, or changed by hand."""
        return InvalidRequest(f"'{self.path}' has no run to go on with: it lacks a readable {RECORD}")

    @property
    def steps(self) -> Path:
        """Where `transformers.Trainer` keeps the checkpoints of the unfinished run."""
        return self.path / STEPS

    def write(self, **fields: Any) -> None:
        """Adds fields to the record and writes it.

        Raises:
            AttenuatorError: the folder cannot be written.
        """
        self.record |= fields
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            draft = self.path / f"{RECORD}.draft"
            draft.write_text(json.dumps(self.record, indent=2) + "\n", encoding="utf-8")
            draft.replace(self.path / RECORD)
        except OSError as error:
            raise AttenuatorError(f"'{self.path}' cannot be written: {error.strerror}") from None

    def finish(self, **fields: Any) -> None:
        """Ends the run, after its model was saved: the unfinished checkpoints are removed.

        Raises:
            AttenuatorError: the folder cannot be written.
        """
        self.write(finished=True, **fields)
        shutil.rmtree(self.steps, ignore_errors=True)


def next_command(path: Path) -> str:
    """What makes a bundle of a checkpoint, for a shell."""
    return f"attenuator tune {shlex.quote(str(path))} --texts FILE --output BUNDLE"
