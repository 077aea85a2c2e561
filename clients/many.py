"""Many inputs, each a call of its own: a few under way at a time, answers in order, and a file from which to go on.

The service puts calls that arrive together into one batch, so that nothing is won by putting many inputs into a call,
and an input that is refused takes no other with it.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from attenuator.api import Classification, ModelInfo
from attenuator.clients import calls
from attenuator.clients.calls import Call, Input
from attenuator.clients.outcomes import Outcome, error_record, meets_one_input, read_error
from attenuator.clients.progress import progress_bar
from attenuator.errors import AttenuatorError, InvalidRequest
from attenuator.journal import Journal
from attenuator.ops import KNOBS

JOURNAL_FORMAT = 1
JOURNAL_NAMES = ("classify_many", "settings")  # of what a run's file begins with
NOT_SETTINGS = ("inputs", "timeout_ms", "priority")  # fields of a call that change no answer


@dataclass(frozen=True, slots=True)
class Task:
    """One input on its way.

    Attributes:
        outcome: where it is known without asking; its input in any case.
        call: to send; None where the outcome is known.
        digest: of the input.
    """

    outcome: Outcome
    call: Call[Classification] | None = None
    digest: str = ""


class ManyCalls:
    """The calls of one `classify_many`, and what became of them; all but sending, the same for both clients.

    As a context it opens the file to resume from and the progress bar, and closes them.

    Attributes:
        concurrency: calls under way at a time.
        ended: an error ended it; no further calls are to be sent.
        by_calibration: whether there is a file to resume from, and the answers depend on the model's calibration.
    """

    def __init__(
        self,
        inputs: Iterable[Input],
        options: dict[str, Any],
        concurrency: int,
        *,
        resume: Path | None,
        progress: bool,
        total: int | None,
    ) -> None:
        """Checks the options before anything is sent; see `classify_many`."""
        if isinstance(inputs, str | Mapping):
            raise InvalidRequest("inputs is one input, must be a list or an iterator of inputs", param="inputs")
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}, must be 1 or more", param="concurrency")
        body = json.loads(calls.classify("-", **options).content or b"")
        self.concurrency = concurrency
        self.ended = False
        self._settings = {name: value for name, value in body.items() if name not in NOT_SETTINGS}
        chosen = self._settings.keys() & KNOBS.keys()  # then a calibration chooses none, unless it says how sure it is
        judged = self._settings.keys() & {"explain", "escalate"}
        self.by_calibration = resume is not None and bool(judged or not chosen)
        self._inputs, self._options, self._resume = inputs, options, resume
        self._total = len(inputs) if total is None and isinstance(inputs, Sized) else total
        self._journal: Journal | None = None
        self._places: dict[int, tuple[int, str]] = {}
        self._revision: str | None = None
        self._bar = progress_bar(shown=progress)
        self._lock = threading.Lock()

    def is_of(self, models: Iterable[ModelInfo]) -> None:
        """Takes a service's models before the file is opened, for the calibration of the one that is asked."""
        name = self._settings.get("model")
        self.is_by(next((info.calibration for info in models if name in (None, info.name)), None))

    def is_by(self, calibration: BaseModel | None) -> None:
        """Takes what a model's settings are worth before the file is opened; None where it was not calibrated."""
        if calibration is not None and self.by_calibration:
            digest = hashlib.sha256(calibration.model_dump_json().encode()).hexdigest()
            self._settings["calibration"] = digest

    def __enter__(self) -> Self:
        """Opens the file and the progress bar.

        Raises:
            InvalidRequest: the file is of a call with other options or by another calibration, is damaged, in use, or
                cannot be written.
        """
        if self._resume is not None:
            self._open(self._resume)
        self._bar.start()
        self._task = self._bar.add_task("classifying", total=self._total)
        return self

    def __exit__(self, *error: object) -> None:
        """Closes both."""
        self._bar.stop()
        if self._journal is not None:
            self._journal.close()

    def _open(self, path: Path) -> None:
        about = dict(zip(JOURNAL_NAMES, (JOURNAL_FORMAT, self._settings), strict=True))
        self._journal = journal = Journal(
            path,
            about,
            other="holds answers to a call with other options or by another calibration, or is another kind of file",
            advice="give the options of that call, or another file",
        )
        try:
            for place, record in journal.records():
                self._places[record["index"]] = (place, record["input"])
                self._revision = record["answer"]["revision"] if "answer" in record else self._revision
        except (KeyError, TypeError):
            raise journal.damaged() from None

    def tasks(self) -> Iterator[Task]:
        """The inputs in order.

        Raises:
            InvalidRequest: an input is not the one that the file has an answer to.
        """
        for index, each in enumerate(self._inputs):
            try:
                call, digest = calls.classify([each], **self._options), _digest(each)
            except InvalidRequest as error:  # it has no JSON form
                yield Task(Outcome(index, each, error=error))
                continue
            place, recorded = self._places.get(index, (0, digest))
            if recorded != digest:
                raise InvalidRequest(
                    f"{self._resume} holds an answer to another input than input {index + 1}: give the inputs of that "
                    "call in their order, or another file"
                )
            yield Task(self._recorded(index, each, place)) if place else Task(Outcome(index, each), call, digest)

    def _recorded(self, index: int, each: Input, place: int) -> Outcome:
        assert self._journal is not None
        record = self._journal.at(place)
        try:
            if "answer" in record:
                answer = Classification.model_validate(record["answer"])
                answer.received(request_id=record["request_id"], status=record["status"])
                return Outcome(index, each, answer)
            return Outcome(index, each, error=read_error(record["error"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._journal.damaged() from None

    def answered(self, task: Task, answer: Classification) -> Outcome:
        """Takes an answer.

        Raises:
            InvalidRequest: the file has answers of another revision of the model.
        """
        if self._journal is not None:
            with self._lock:
                self._revision = self._revision or answer.revision
            if answer.revision != self._revision:
                self.ended = True
                raise InvalidRequest(
                    f"{self._resume} holds answers of the model's revision {self._revision}, and the service now has "
                    f"{answer.revision}: serve the former again, or give another file"
                )
            source = {"request_id": answer.request_id, "status": answer.status}
            self._write(task, {"answer": answer.model_dump(mode="json", exclude_none=True)} | source)
        return Outcome(task.outcome.index, task.outcome.input, answer)

    def failed(self, task: Task, error: AttenuatorError) -> Outcome:
        """Takes an error; raises it where it concerns more than this input.

        What took too long or failed inside the service is not written: it is asked again when the run is resumed.
        """
        if not meets_one_input(error):
            self.ended = True
            raise error
        if self._journal is not None and isinstance(error, InvalidRequest):
            self._write(task, {"error": error_record(error)})
        return Outcome(task.outcome.index, task.outcome.input, error=error)

    def _write(self, task: Task, record: dict[str, Any]) -> None:
        assert self._journal is not None
        self._journal.append({"index": task.outcome.index, "input": task.digest} | record)

    def passed(self, outcome: Outcome) -> Outcome:
        """Counts an outcome that goes to the caller."""
        self._bar.advance(self._task)
        return outcome


def _digest(each: Input) -> str:
    return hashlib.sha256(calls.to_json({"input": each})).hexdigest()[:32]


def classify_many(
    inputs: Iterable[Input],
    *,
    concurrency: int = 8,
    progress: bool = False,
    total: int | None = None,
    resume: str | Path | None = None,
    **options: Any,
) -> ManyCalls:
    """Classifies any number of inputs, a few at a time, and yields an `Outcome` for each, in their order.

    Inputs are read as they are needed. An error that one input alone meets is in its outcome; one that others would
    meet too (no service, a wrong key, a wrong option, overload beyond the retries) is raised, and ends the iteration.
    To stop early, leave the iteration by `contextlib.closing`, or `aclosing` where it is awaited: what is under way is
    then ended at once, not when the iterator is collected.

    Args:
        inputs: texts, or mappings as `classify` takes them; a list or any iterator.
        concurrency: calls under way at a time.
        progress: draw a bar on standard error, where that is a terminal.
        total: how many inputs there are, for the bar; that of a list is known.
        resume: a file of finished answers, JSON lines, which is made where there is none. What it holds is not asked
            again: a run that crashed or was stopped goes on where it ended, with the same inputs and options.
        **options: those of `classify`, knobs among them, for every input.

    Yields:
        An outcome for each input, in order.

    Raises:
        InvalidRequest: an option is wrong; or the file to resume from holds answers to other options, to other inputs
            or of another revision or calibration of the model, is damaged, in use, or cannot be written.
        AttenuatorError: as `classify`, where an error concerns more than one input.
    """
    file = None if resume is None else Path(resume)
    return ManyCalls(inputs, options, concurrency, resume=file, progress=progress, total=total)
