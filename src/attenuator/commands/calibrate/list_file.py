"""The lists of a calibration: queries with the documents that a reranker orders, one list a line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attenuator.errors import InvalidRequest, printable
from attenuator.ops.knobs import shown
from attenuator.runtime import Encoded, Input, Model
from attenuator.texts import input_in, records_of

FIELDS = ("query", "documents", "relevant")
LIST = "query, documents and, on every line or on none, relevant"


@dataclass(frozen=True, slots=True, eq=False)
class Larger:
    """The model that scores the best documents again, where it is another one.

    Attributes:
        model: with one output.
        folder: where it lies.
        encoded: the pairs of all lists, in its own tokens.
    """

    model: Model
    folder: Path
    encoded: Sequence[Encoded]


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """How the pairs of a file are divided into lists.

    Attributes:
        sizes: documents of each list; the pairs of a list follow each other.
        relevant: places of the relevant documents in each list; None where the file does not say.
        larger: the model whose order counts; None where it is that of the bundle's own checkpoint.
    """

    sizes: Sequence[int]
    relevant: Sequence[frozenset[int]] | None
    larger: Larger | None = None

    def spans(self) -> Iterator[slice]:
        """Where the pairs of each list are among all pairs."""
        end = 0
        for size in self.sizes:
            yield slice(end, end + size)
            end += size

    def seeds(self) -> list[int]:
        """The seed of each pair: one a list, since a request runs all its documents with one."""
        return [place for place, size in enumerate(self.sizes) for _ in range(size)]


class _Line(NamedTuple):
    """One list: its pairs, and the places of its relevant documents where the line has them."""

    pairs: list[Input]
    relevant: frozenset[int] | None


def is_list(record: Mapping[str, Any]) -> bool:
    """Whether a line holds a list rather than a text, which may have a field of such a name beside it."""
    return not input_in(record) and ("query" in record or "documents" in record)


def has_lists(path: Path) -> bool:
    """Whether the first line of a file holds a list."""
    return any(is_list(record) for _, record in _first(path))


def _first(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first line, where there is one."""
    for each in records_of(str(path)):
        yield each
        return


def refuse_mixed(where: str, kind: str, before: str) -> InvalidRequest:
    """That a line is of another kind than those before it."""
    return InvalidRequest(f"{where} holds {kind}, but the lines before it hold {before}: all must hold the same")


def read_lists(path: Path, model: Model, *, truncate: bool) -> tuple[Lists, list[Encoded]]:
    """Reads and checks a file of lists, and tokenizes each pair of a query and a document.

    Args:
        path: each line an object of `query`, `documents` (texts, or objects with `text`) and, on every line or on none,
            `relevant`, the places of the relevant ones from 0 on, which may be none.
        model: the bundle that scores them.
        truncate: cuts pairs that are too long instead of refusing the file.

    Returns:
        The lists, and their pairs.

    Raises:
        InvalidRequest: the file cannot be read, a line is not as described, or the bundle has several outputs.
    """
    refuse_several_outputs(model)
    sizes: list[int] = []
    relevant: list[frozenset[int] | None] = []
    encoded: list[Encoded] = []
    for where, record in records_of(str(path)):
        line = _line_of(record, where)
        encoded += [pair.encode(model.encoder, truncate=truncate) for pair in line.pairs]
        sizes.append(len(line.pairs))
        if relevant and (line.relevant is None) != (relevant[0] is None):
            has, others = ("no relevant", "have it") if line.relevant is None else ("relevant", "have none")
            raise InvalidRequest(f"{where} has {has}, but the lines before it {others}: every line must, or none")
        relevant.append(line.relevant)
    stated = [places for places in relevant if places is not None]
    return Lists(sizes, stated or None), encoded


def refuse_several_outputs(model: Model) -> None:
    """Refuses a bundle that cannot order documents.

    Raises:
        InvalidRequest: it has several outputs.
    """
    manifest = model.manifest
    if not manifest.ranks:
        raise InvalidRequest(
            f"the data holds lists, which take a reranker, with one output, but '{manifest.name}' is a "
            f"{manifest.task} classifier with {len(manifest.labels)} labels: give texts"
        )


def _line_of(record: Mapping[str, Any], where: str) -> _Line:
    """Checks one line."""
    if input_in(record):
        raise refuse_mixed(where, "a text", "lists")
    for name in record:
        if name not in FIELDS:
            raise InvalidRequest(f"{where} has an unknown field '{printable(name, 60)}', must have {LIST}")
    query, documents = record.get("query"), record.get("documents")
    if not isinstance(query, str):
        raise InvalidRequest(f"{where}.query is {_shown(record, 'query')}, must be a text")
    if not isinstance(documents, list) or not documents:
        raise InvalidRequest(f"{where}.documents is {_shown(record, 'documents')}, must be a list of one or more texts")
    pairs = [_pair(query, document, where, place) for place, document in enumerate(documents)]
    return _Line(pairs, _relevant(record, where, len(documents)))


def _shown(record: Mapping[str, Any], name: str) -> str:
    """A field's value for a sentence; an empty list is said to be empty."""
    if name not in record:
        return "missing"
    return "an empty list" if record[name] == [] else shown(record[name])


def _pair(query: str, document: Any, where: str, place: int) -> Input:
    """The query with one document."""
    name = f"{where}.documents[{place}]"
    if isinstance(document, dict):
        if document.keys() != {"text"}:
            raise InvalidRequest(f'{name} is an object with other fields, must be a text or {{"text": ..}}')
        name, document = f"{name}.text", document["text"]
    if not isinstance(document, str):
        raise InvalidRequest(f'{name} is {shown(document)}, must be a text or {{"text": ..}}')
    return Input(f"{where}.query", query, document, pair_param=name)


def _relevant(record: Mapping[str, Any], where: str, documents: int) -> frozenset[int] | None:
    """The places of the relevant documents; None where the line has no such field."""
    if "relevant" not in record:
        return None
    relevant = record["relevant"]
    allowed = f"a list of different whole numbers from 0 to {documents - 1}, the places of documents"
    if not isinstance(relevant, list):
        raise InvalidRequest(f"{where}.relevant is {shown(relevant)}, must be {allowed}")
    for place in relevant:
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < documents:
            raise InvalidRequest(f"{where}.relevant has {shown(place)}, must be {allowed}")
    if len(set(relevant)) < len(relevant):
        raise InvalidRequest(f"{where}.relevant has a place twice, must be {allowed}")
    return frozenset(relevant)
