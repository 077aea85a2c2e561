"""`attenuator classify` from a file to a file: rows that cannot be answered get an error, and a stopped run goes on."""

import contextlib
import itertools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attenuator.api import Classification
from attenuator.clients.client import Client
from attenuator.clients.many import JOURNAL_NAMES, ManyCalls, Task, classify_many
from attenuator.clients.outcomes import Outcome
from attenuator.clients.senders import Outcomes
from attenuator.commands.backends import BundleBackend, ClassifyOptions
from attenuator.commands.rowoutput import RowOutput
from attenuator.errors import AttenuatorError, InvalidRequest
from attenuator.journal import forget
from attenuator.rows import TEXT, Columns, FileRow, Format, file_rows, with_encoding_error
from attenuator.texts import STDIN, at_least_one, parts

PARTIAL_SUFFIX = ".partial.jsonl"
# Inputs among which those of similar lengths run together, at most; what a run that is stopped does again.
WINDOW, WINDOW_CHARACTERS = 512, 200_000


@dataclass(frozen=True, slots=True)
class FileRun:
    """What is read and where it goes.

    Attributes:
        texts: inputs beside the file.
        source: the file to read, or `-`; None where there are texts alone.
        kind: its format.
        columns: which columns hold the input.
        output: the file to write, or `-`.
        output_kind: its format.
        resume: the file of finished answers; None keeps none.
        restart: forgets those of an earlier run.
        concurrency: requests to a server under way at a time.
    """

    texts: Sequence[str]
    source: str | None
    kind: Format
    columns: Columns
    output: str
    output_kind: Format
    resume: Path | None
    restart: bool
    concurrency: int

    def rows(self) -> Iterator[FileRow]:
        """The texts as rows, then those of the file; raises InvalidRequest where that is none."""
        return at_least_one(self._rows(), self.source or STDIN, "row")

    def _rows(self) -> Iterator[FileRow]:
        for number, text in enumerate(self.texts, start=1):
            yield with_encoding_error(FileRow(f"text {number}", {TEXT: text}, {TEXT: text}))
        if self.source is not None:
            yield from file_rows(self.source, self.kind, self.columns)

    def total(self) -> int | None:
        """How many rows can be asked about; None where that would read standard input or another pipe.

        Raises:
            InvalidRequest: the file cannot be read, or has no such column.
        """
        path = None if self.source is None else Path(self.source)
        is_pipe = path is not None and path.exists() and not path.is_file()  # which is gone once it is counted
        return None if self.source == STDIN or is_pipe else sum(row.content is not None for row in self.rows())

    @contextlib.contextmanager
    def opened(self) -> Iterator[IO[str]]:
        """The output, to be written to behind what it holds already.

        Raises:
            InvalidRequest: it cannot be opened.
            AttenuatorError: it cannot be written to its end: the disk is full, for instance.
        """
        if self.output == STDIN:
            yield sys.stdout
            return
        try:
            stream = open(self.output, "a", encoding="utf-8", errors="backslashreplace", newline="")  # noqa: SIM115
        except OSError as error:
            raise InvalidRequest(f"{self.output} cannot be written: {error.strerror}") from None
        try:
            with stream:
                yield stream
        except BrokenPipeError:  # nobody reads it any more
            raise
        except OSError as error:
            raise AttenuatorError(f"{self.output} cannot be written to its end: {error.strerror}") from None


def partial_of(output: str) -> Path | None:
    """Where the answers of an unfinished run are, beside its output; None beside standard output, pipes and devices."""
    is_file = output != STDIN and (Path(output).is_file() or not Path(output).exists())
    return Path(f"{output}{PARTIAL_SUFFIX}") if is_file else None


def named(error: AttenuatorError, where: str) -> str:
    """An error's sentence, with the input named by its place rather than by its index in a request."""
    sentence = re.sub(r"inputs\[\d+\](\.\w+\b)?", where, str(error), count=1)
    return sentence.replace("set truncate", "give --truncate")


class Rows:
    """Rows on their way: the readable ones are asked about, the others wait for their turn in the output.

    Attributes:
        written: rows in the output.
        errors: how many of them have an error.
        first_error: the first of these errors.
    """

    def __init__(self, rows: Iterator[FileRow]) -> None:
        self._rows = rows
        self._waiting: deque[FileRow] = deque()
        self.written = self.errors = 0
        self.first_error = ""

    def contents(self) -> Iterator[dict[str, Any]]:
        """The inputs of the readable rows."""
        for row in self._rows:
            self._waiting.append(row)
            if row.content is not None:
                yield row.content

    def take(self, outcome: Outcome, output: RowOutput) -> None:
        """Writes the rows up to the one that an outcome is of."""
        self.unreadable(output)
        row = self._waiting.popleft()
        self._write(output, row, outcome.answer, "" if outcome.error is None else named(outcome.error, row.where))

    def unreadable(self, output: RowOutput) -> None:
        """Writes the rows that cannot be read, up to the next one that is asked about."""
        while self._waiting and self._waiting[0].content is None:
            row = self._waiting.popleft()
            self._write(output, row, None, row.error)

    def _write(self, output: RowOutput, row: FileRow, answer: Classification | None, error: str) -> None:
        output.write(row, answer, error)
        self.written += 1
        self.errors += bool(error)
        self.first_error = self.first_error or error


def in_windows(run: ManyCalls, backend: BundleBackend, options: ClassifyOptions) -> Outcomes:
    """Answers with a bundle in this process, a window of inputs at a time, each with the answer that it has alone.

    Args:
        run: the calls.
        backend: the bundle.
        options: what is asked of every input.
    """
    run.is_by(backend.calibration)
    with run:
        tasks = run.tasks()
        for window in parts(tasks, _characters, WINDOW, WINDOW_CHARACTERS):
            asked = [task for task in window if task.call]
            answers = iter(backend.classify_each([task.outcome.input for task in asked], options))  # type: ignore[misc]
            for task in window:
                yield run.passed(_outcome(run, task, next(answers)) if task.call else task.outcome)


def _characters(task: Task) -> int:
    """About how long an input is; nothing where its outcome is known."""
    return len(str(task.outcome.input)) if task.call else 0


def _outcome(run: ManyCalls, task: Task, answer: Classification | InvalidRequest) -> Outcome:
    return run.failed(task, answer) if isinstance(answer, InvalidRequest) else run.answered(task, answer)


def asked_of(
    backend: Client | BundleBackend,
    run: FileRun,
    rows: Rows,
    options: ClassifyOptions,
    further: Mapping[str, Any],
    total: int | None,
) -> Outcomes:
    """Begins to ask; an outcome for each readable row, in order."""
    arguments: dict[str, Any] = {**options.arguments(), **further, "resume": run.resume}
    arguments |= {"concurrency": run.concurrency, "progress": True, "total": total}
    if isinstance(backend, Client):
        return backend.classify_many(rows.contents(), **arguments)
    return in_windows(classify_many(rows.contents(), **arguments), backend, options)


def run_file(
    run: FileRun,
    backend_of: Callable[[], Client | BundleBackend],
    options: ClassifyOptions,
    further: Mapping[str, Any],
) -> int:
    """Classifies the rows of a file.

    Args:
        run: what is read and where it goes.
        backend_of: makes a client of a server, or loads a bundle into this process, once the file has proved readable.
        options: what is asked of every input.
        further: arguments of `Client.classify_many` that only a server takes.

    Returns:
        0, or 1 where a row has an error.

    Raises:
        AttenuatorError: something is wrong with more than a row.
        KeyboardInterrupt: the run was stopped; what it finished is kept.
    """
    total = run.total()
    if run.restart and run.resume is not None:
        forget(run.resume, JOURNAL_NAMES)
    with contextlib.closing(backend_of()) as backend:
        rows = Rows(run.rows())
        _write_rows(run, rows, options, asked_of(backend, run, rows, options, further, total))
    if run.resume is not None and run.resume == partial_of(run.output):
        run.resume.unlink(missing_ok=True)
    if rows.errors:
        print(
            f"attenuator classify: {rows.errors:,} of {rows.written:,} rows have an error, the first: "
            f"{rows.first_error}",
            file=sys.stderr,
        )
    return 1 if rows.errors else 0


def _write_rows(run: FileRun, rows: Rows, options: ClassifyOptions, asked: Outcomes) -> None:
    """Writes the output as outcomes come; where that ends early, says how to go on."""
    with run.opened() as stream, contextlib.closing(asked):
        output = RowOutput(
            stream,
            run.output_kind,
            scores=options.top_k is not None,
            logits=options.return_logits,
            sureness=options.explain or options.escalate,
        )
        try:
            first = next(asked, None)
            if Path(run.output).is_file():  # and no pipe or device
                stream.truncate(0)  # not before: a run that is refused leaves the output of another one
            for outcome in itertools.chain([first] if first else [], asked):
                rows.take(outcome, output)
            rows.unreadable(output)
        except (KeyboardInterrupt, OSError, AttenuatorError) as error:
            if rows.written and run.resume is not None:
                stopped = f"stopped after {rows.written:,} rows: the same command goes on from {run.resume}"
                print(f"attenuator classify: {stopped}", file=sys.stderr)
            elif isinstance(error, InvalidRequest) and str(run.resume) in str(error) and "in use" not in str(error):
                raise InvalidRequest(f"{error}; --restart begins anew") from None
            raise
        output.close()
