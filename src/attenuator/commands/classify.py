"""The command `attenuator classify`."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from attenuator.api import Classification
from attenuator.clients.calls import UNSET
from attenuator.clients.progress import progress_bar
from attenuator.commandline import fail, parse
from attenuator.commands.backends import Backend, BundleBackend, ClassifyOptions, ServerBackend
from attenuator.commands.classify_settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE, ClassifySettings
from attenuator.commands.filerun import FileRun, named, partial_of, run_file
from attenuator.commands.knobflags import flag, knobs_of_others
from attenuator.commands.output import output_for
from attenuator.commands.places import client_of, device_of, knobs_of_settings, of_server, take_place, with_flag
from attenuator.errors import AttenuatorError, InvalidRequest
from attenuator.rows import Columns, Format, file_rows, format_of
from attenuator.texts import STDIN, Item, at_least_one, items, parts

BATCH_ITEMS, BATCH_CHARACTERS = 32, 400_000  # at most, of inputs that are answered together


def bundle_backend(settings: ClassifySettings, folder: Path) -> BundleBackend:
    """The bundle in this process; an AttenuatorError where it cannot be had."""
    return BundleBackend(folder, device=device_of(COMMAND, settings), threads=settings.threads)


def options_of(settings: ClassifySettings) -> ClassifyOptions:
    """What is asked of every input; ends the command with a usage error where a knob or a goal is wrong."""
    knobs = knobs_of_settings(COMMAND, settings)
    check_goals(settings, knobs)
    seed = None if settings.seed == "random" else UNSET if settings.seed is None else settings.seed
    several = settings.candidate_labels
    labels = None if several is None else [label.strip() for label in several.split(",")]
    return ClassifyOptions(
        knobs,
        settings.min_agreement,
        settings.max_latency_ms,
        seed,
        settings.top_k,
        settings.truncate,
        settings.logits,
        settings.explain,
        settings.escalate,
        labels,
        settings.hypothesis_template,
        settings.multi_label,
        settings.aggregation,
    )


def file_run(settings: ClassifySettings, output: str, texts: Sequence[str], file: str | None) -> FileRun:
    """What is read and written with `--output`; ends the command with a usage error where a format is unknown."""
    kind = input_format(settings, file)
    by_name = format_of(output, settings.output_format)
    if by_name == "text":
        if output != STDIN:
            fail(COMMAND, f"--output is {output}, must end in .csv, .tsv or .jsonl, or give --output-format")
        by_name = "csv" if kind == "text" else kind
    if file is not None and is_read(file, output):
        fail(COMMAND, f"--output is {output}, the file that is read: give another one")
    resume = settings.resume or partial_of(output)
    others = {Path(path).resolve() for path in (file, output) if path}
    if resume is not None and resume.resolve() in others:
        fail(COMMAND, f"--resume is {resume}, the file that is read or the --output: give another one")
    columns = Columns(settings.column, settings.pair_column)
    return FileRun(texts, file, kind, columns, output, by_name, resume, settings.restart, settings.concurrency)


def is_read(file: str, output: str) -> bool:
    """Whether an output is the file that is read, be it by its name or as standard input."""
    try:
        read = os.fstat(sys.stdin.fileno()) if file == STDIN else os.stat(file)
        return stat.S_ISREG(read.st_mode) and os.path.samestat(read, os.stat(output))
    except OSError:  # one of them is not there, or is no file
        return False


def input_format(settings: ClassifySettings, file: str | None) -> Format:
    """The format of the file that is read."""
    return format_of(file or "", settings.format)


def source_of(settings: ClassifySettings, texts: Sequence[str], file: str | None) -> Iterator[Item]:
    """The inputs, the texts first; the first row that cannot be read is raised."""
    kind = input_format(settings, file)
    if kind == "text" or (kind == "jsonl" and settings.column is None and settings.pair_column is None):
        yield from items(texts, [file] if file is not None else [], jsonl=kind == "jsonl")
        return
    yield from items(texts, [], jsonl=False)
    for row in file_rows(file or STDIN, kind, Columns(settings.column, settings.pair_column)):
        if row.content is None:
            raise InvalidRequest(row.error)
        yield Item(row.where, row.content)


def check_goals(settings: ClassifySettings, knobs: Mapping[str, object]) -> None:
    """Ends the command with a usage error where goals stand beside knobs, or one needs a server."""
    goals = {"--min-agreement": settings.min_agreement, "--max-latency-ms": settings.max_latency_ms}
    goal = next((name for name, value in goals.items() if value is not None), None)
    if settings.escalate and settings.min_agreement is None:
        fail(COMMAND, "--escalate needs --min-agreement, the probability to reach: give both")
    if settings.escalate and settings.max_latency_ms is not None:
        fail(COMMAND, "--max-latency-ms stands beside --escalate, which ends at a deadline: give --timeout-ms instead")
    if goal and knobs and not settings.escalate:
        fail(COMMAND, f"{goal} stands beside {flag(next(iter(knobs)))}, but a goal chooses every knob: give only one")
    if settings.max_latency_ms is not None and settings.bundle is not None:
        fail(COMMAND, "--max-latency-ms needs a server (--url): only that knows how long its queue is")


def main(arguments: Sequence[str]) -> int:
    """Classifies the texts that the arguments, a file or standard input hold.

    Args:
        arguments: what follows `attenuator classify`.

    Returns:
        0; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the bundle, the server or an input is at fault.
        SystemExit: 2 after a usage error.
    """
    others = knobs_of_others(arguments)
    settings, texts = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES, hidden=others)
    take_place(COMMAND, settings, texts, arguments)
    file = settings.input
    if not texts and file is None:
        if sys.stdin.isatty():
            fail(COMMAND, "there is no input: give a TEXT, give --input FILE, or pipe texts into the command")
        file = STDIN
    try:
        return answer_all(settings, texts, file)
    except InvalidRequest as error:
        raise with_flag(error, ClassifySettings) from None


def answer_all(settings: ClassifySettings, texts: Sequence[str], file: str | None) -> int:
    """Answers texts and a file's rows, into a file where `--output` names one; returns the exit code.

    Raises:
        AttenuatorError: as `main`.
    """
    options = options_of(settings)
    if settings.output is not None:
        run = file_run(settings, settings.output, texts, file)
        folder = settings.bundle
        if folder is not None:
            return run_file(run, lambda: bundle_backend(settings, folder), options, {})
        return run_file(run, lambda: client_of(settings, settings.concurrency), options, of_server(settings))
    source = at_least_one(source_of(settings, texts, file), file or STDIN, "text")
    show_answers(settings, options, source, streamed=file == STDIN)
    return 0


def show_answers(
    settings: ClassifySettings, options: ClassifyOptions, source: Iterator[Item], *, streamed: bool
) -> None:
    """Prints an answer for each input, batch by batch; of a batch with an input that is refused, none.

    Args:
        settings: of the command.
        options: what is asked of every input.
        source: the inputs. A file is read to the end before anything runs: a wrong line is reported at once, and the
            total is known.
        streamed: they come from standard input, and are answered as they come.
    """
    everything = None if streamed else list(source)
    output = output_for(json_lines=settings.json_lines)
    backend: Backend
    if settings.bundle is not None:
        backend = bundle_backend(settings, settings.bundle)
    else:
        backend = ServerBackend(
            client_of(settings, settings.concurrency), {"concurrency": settings.concurrency, **of_server(settings)}
        )
    with closing(backend), progress_bar() as progress:
        count = None if everything is None else len(everything)
        task = progress.add_task("classifying", total=count, visible=count is None or count > BATCH_ITEMS)
        inputs = source if everything is None else iter(everything)
        for batch in parts(inputs, lambda item: len(item.excerpt), BATCH_ITEMS, BATCH_CHARACTERS):
            answers = backend.classify_each([item.content for item in batch], options)
            answered = [_answer_to(item, answer) for item, answer in zip(batch, answers, strict=True)]
            for item, answer in zip(batch, answered, strict=True):
                output.show(item, answer)
            progress.advance(task, len(batch))
    output.close()


def _answer_to(item: Item, answer: Classification | AttenuatorError) -> Classification:
    """The answer; its error is raised, with the input named by its line or argument."""
    if isinstance(answer, InvalidRequest):
        raise type(answer)(named(answer, item.where), param=answer.param, allowed=answer.allowed)
    if isinstance(answer, AttenuatorError):
        raise answer
    return answer
