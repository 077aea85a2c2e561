"""Pairs of texts to score, from the fields of a request that ranks documents: over HTTP and in process."""

from collections.abc import Iterator, Mapping
from typing import Any

from attenuator.api import TextInput
from attenuator.bundle import Manifest
from attenuator.ops.knobs import shown
from attenuator.runtime.request import check_count, unknown_field, wrong
from attenuator.runtime.tokens import Input

MAX_DOCUMENTS = 1000
MAX_REPEATED = 16_384  # characters of a text that stands in several pairs: it is tokenized with each of them
SEVERAL = f"a list of 1 to {MAX_DOCUMENTS} texts"
SHAPES = {  # of the fields that hold texts
    "query": "a text",
    "documents": f'{SEVERAL}, or of {{"text": ..}}',
    "texts": SEVERAL,
    "text_1": f"a text, or {SEVERAL}",
    "text_2": f"a text, or {SEVERAL}",
}
TEXT = next(iter(TextInput.model_fields))  # the one field of a document that is an object


def check_reranker(manifest: Manifest, otherwise: str, param: str = "model") -> None:
    """Refuses a model that does not rank and that a field names; `otherwise` says what to ask of it instead."""
    if not manifest.ranks:
        kind = f"is '{manifest.name}', a {manifest.task} classifier with {len(manifest.labels)} labels"
        raise wrong(param, kind, "a reranker, which has one output", f": {otherwise}")


def texts_of(fields: Mapping[str, Any], name: str, most: int = MAX_DOCUMENTS) -> dict[str, str]:
    """The texts of a field, by what sentences call them; a list has at most `most`."""
    allowed = SHAPES[name]
    if name not in fields:
        raise wrong(name, "is missing", allowed)
    value = fields[name]
    if isinstance(value, str) and allowed.startswith("a text"):
        return {name: value}
    if not isinstance(value, list) or name == "query":
        raise wrong(name, f"is {shown(value)}", allowed)
    check_count(len(value), name, most)
    return dict(text_of(item, f"{name}[{index}]", name == "documents") for index, item in enumerate(value))


def text_of(item: Any, where: str, takes_objects: bool) -> tuple[str, str]:
    """What sentences call a text of a list, and the text."""
    if takes_objects and isinstance(item, dict):
        for name in item:
            if name != TEXT:
                raise unknown_field(name, [TEXT], f"{where}.")
        where, item = f"{where}.{TEXT}", item.get(TEXT)
    if not isinstance(item, str):
        raise wrong(where, f"is {shown(item)}", 'a text or {"text": ..}' if takes_objects else "a text")
    return where, item


def paired(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Input]:
    """The pairs to score: one text with each of the second, or each with the one in its place."""
    [(name, text), *others] = first.items()
    if others and len(first) != len(second):
        raise wrong("text_2", f"has {len(second)} texts", f"{len(first)} texts, as many as text_1")
    if not others and len(second) > 1 and len(text) > MAX_REPEATED:
        allowed = f"a text of at most {MAX_REPEATED} characters"
        raise wrong(name, f"has {len(text)} characters", allowed, " where it is paired with several texts")
    names = first.items() if others else [(name, text)] * len(second)
    for (name, text), (other_name, other) in zip(names, second.items(), strict=True):
        yield Input(name, text, other, pair_param=other_name)
