"""The command `attenuator rerank`."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from attenuator.bundle import read_manifest
from attenuator.calibration.schema import shown
from attenuator.clients.client import Client
from attenuator.clients.progress import progress_bar
from attenuator.commandline import fail, parse
from attenuator.commands.knobflags import flag, knobs_of_others
from attenuator.commands.output import SHORTEST_EXCERPT, cut
from attenuator.commands.places import client_of, device_of, knobs_of_settings, of_server, take_place, with_flag
from attenuator.commands.rerank_settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE, RerankSettings
from attenuator.errors import InvalidRequest
from attenuator.ranking import Ranking
from attenuator.rows import TEXT, Columns, file_rows, format_of
from attenuator.texts import STDIN, at_least_one, lines, name_of, places, record_of

if TYPE_CHECKING:
    from attenuator.local import LocalModel

QUERY, DOCUMENTS = "query", "documents"
LINE = f'must be {{"{QUERY}": "..", "{DOCUMENTS}": [".."]}}, or give --query'


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with documents.

    Attributes:
        query: the query.
        documents: as the HTTP API takes them.
        where: the place of its line in a file of queries; empty for one of the command line.
        places: those of the documents of the latter.
    """

    query: Any
    documents: Any
    where: str = ""
    places: Sequence[str] = ()

    def text(self, index: int) -> str:
        """The text of a document that was ranked."""
        document = self.documents[index]
        return str(document[TEXT] if isinstance(document, dict) else document)

    def named(self, error: InvalidRequest) -> InvalidRequest:
        """An error with a document named by its place rather than by its index in a request."""

        def place(match: re.Match[str]) -> str:
            return self.places[int(match[1])] if self.places else match[0]

        sentence = re.sub(rf"{DOCUMENTS}\[(\d+)\](\.{TEXT}\b)?", place, str(error), count=1)
        sentence = re.sub(r" in the body and in the header [\w-]+", "", sentence, count=1)  # there are flags alone here
        sentence = (f"{self.where}: " if self.where else "") + sentence.replace("set truncate", "give --truncate")
        return type(error)(sentence, param=error.param, allowed=error.allowed)


def asked_by(settings: RerankSettings, words: Sequence[str], file: str | None) -> Iterator[Asked]:
    """The query with its documents, words first, or those that each line of a file has.

    Raises:
        InvalidRequest: the file cannot be read, or a line is not what it should be.
    """
    kind = format_of(file or "", settings.format)
    if settings.query is None:
        assert file is not None
        for where, line in at_least_one(places(lines(file), name_of(file)), file, "list"):
            record = record_of(line, where, LINE)
            for name in (QUERY, DOCUMENTS):
                if name not in record:
                    raise InvalidRequest(f"{where} has no field {name}, {LINE}")
            yield Asked(record[QUERY], record[DOCUMENTS], where)
        return
    documents = [(f"document {number}", word) for number, word in enumerate(words, start=1)]
    for row in file_rows(file, kind, Columns(settings.column or TEXT)) if file else ():
        if row.content is None:
            raise InvalidRequest(row.error)
        documents.append((row.where, row.content[TEXT]))
    if not documents:
        raise InvalidRequest(f"{name_of(file or STDIN)} is empty, must have at least one document")
    yield Asked(settings.query, [text for _, text in documents], places=[where for where, _ in documents])


def fields_of(settings: RerankSettings) -> dict[str, Any]:
    """What is asked of every list; ends the command with a usage error where a knob is wrong or a server is missing."""
    fields: dict[str, Any] = {**knobs_of_settings(COMMAND, settings), "truncate": settings.truncate}
    fields |= {"top_n": settings.top_n, "rescore": settings.rescore}
    if settings.seed is not None:
        fields["seed"] = None if settings.seed == "random" else settings.seed
    of_lists = {
        "cascade": settings.cascade.split(",") if settings.cascade is not None else None,
        "max_cost": settings.max_cost,
        "max_latency_ms": settings.max_latency_ms,
        "min_agreement": settings.min_agreement,
    }
    if settings.bundle is None:
        return fields | of_lists | of_server(settings)
    for name, value in of_lists.items():
        if value is not None:
            fail(COMMAND, f"{flag(name)} needs a server: --rescore and the knobs work with a bundle")
    return fields


def ranker_of(settings: RerankSettings) -> "Client | LocalModel":
    """The server, or the bundle in this process; an AttenuatorError where that cannot be had."""
    if settings.bundle is None:
        return client_of(settings)
    from attenuator.local import on_device  # ONNX Runtime, which asking a server does not need
    from attenuator.runtime.pairs import check_reranker

    check_reranker(read_manifest(settings.bundle), "ask it by attenuator classify", "BUNDLE")
    return on_device(settings.bundle, device_of(COMMAND, settings), threads=settings.threads)


def show_line(asked: Asked, answer: Ranking) -> None:
    """Writes the answer as JSON at once, so that a reader at the other end of a pipe can start."""
    record: dict[str, Any] = {"input": asked.where} if asked.where else {}
    record |= {"query": asked.query, **answer.model_dump(mode="json", exclude_none=True, exclude={"timing_ms"})}
    for result in record["results"]:
        result["document"] = {TEXT: asked.text(result["index"])}
    print(json.dumps(record, ensure_ascii=False), flush=True)


def show_table(asked: Asked, answer: Ranking) -> None:
    """Prints a table for people and, below it, what ran."""
    console = Console(markup=False, highlight=False)
    if asked.where:
        console.print(f"\n{cut(' '.join(asked.query.split()), console.width)}", style="bold")
    table = Table(box=None, pad_edge=False)
    header = ("score", *(["step"] if len(answer.steps) > 1 else []), "index")
    for name in header:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("document", no_wrap=True, min_width=SHORTEST_EXCERPT)
    room = max(SHORTEST_EXCERPT, console.width - sum(len(name) + 4 for name in header))
    for result in answer.results:
        step = [str(result.step)] if "step" in header else []
        text = cut(" ".join(asked.text(result.index).split()), room)
        table.add_row(f"{result.relevance_score:.4f}", *step, str(result.index), text)
    console.print(table)
    ran = (f"{each.model}: {shown(each.knobs) or 'no knob'}, {each.documents:,} documents" for each in answer.steps)
    console.print("; then ".join(ran) or answer.model, style="dim")


def main(arguments: Sequence[str]) -> int:
    """Ranks the documents that the arguments, a file or standard input hold.

    Args:
        arguments: what follows `attenuator rerank`.

    Returns:
        0; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the bundle, the server or a text is at fault.
        SystemExit: 2 after a usage error.
    """
    others = knobs_of_others(arguments)
    settings, words = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES, hidden=others)
    take_place(COMMAND, settings, words, arguments, takes_url=True)
    file = settings.input
    if not words and file is None:
        if sys.stdin.isatty():
            fail(COMMAND, "there is no document: give a DOCUMENT, give --input FILE, or pipe them into the command")
        file = STDIN
    if settings.query is None and (words or format_of(file or "", settings.format) != "jsonl"):
        fail(
            COMMAND,
            f'--query is missing: give it, or --input FILE.jsonl with lines {{"{QUERY}": .., "{DOCUMENTS}": ..}}',
        )
    rank_all(settings, words, file)
    return 0


def rank_all(settings: RerankSettings, words: Sequence[str], file: str | None) -> None:
    """Ranks each list and shows the answer; a file is read to its end before anything runs.

    Raises:
        AttenuatorError: as `main`.
    """
    fields = fields_of(settings)
    streamed = file == STDIN and settings.query is None
    source = asked_by(settings, words, file)
    everything = None if streamed else list(source)
    is_table = sys.stdout.isatty() and not settings.json_lines
    show = show_table if is_table else show_line
    with closing(ranker_of(settings)) as ranker, progress_bar(shown=not is_table) as progress:
        count = None if everything is None else len(everything)
        task = progress.add_task("ranking", total=count, visible=count != 1)
        for asked in source if everything is None else everything:
            try:
                answer = ranker.rerank(asked.query, asked.documents, **fields)
            except InvalidRequest as error:
                raise with_flag(asked.named(error), RerankSettings) from None
            show(asked, answer)
            progress.advance(task)
