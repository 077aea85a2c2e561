"""What a program passes as inputs or documents, arrays and iterators among it, in the HTTP API's own types."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attenuator.api import INPUT_KINDS
from attenuator.errors import InvalidRequest
from attenuator.runtime.request import parse_input, wrong
from attenuator.runtime.tokens import Input

EACH = INPUT_KINDS.replace("a text, ", "a text, a tuple of two texts, ", 1)
INPUTS_ALLOWED = f"a text, or a list, array or iterator of one or more, each {EACH}"
DOCUMENTS_ALLOWED = 'a list, array or iterator of one or more texts, or of {"text": ..}'


def parse(inputs: Any) -> Iterator[Input]:
    """The inputs of a call, checked by their types.

    Raises:
        InvalidRequest: one is none of `INPUT_KINDS` and no pair, or there is none.
    """
    values = [inputs] if isinstance(inputs, Mapping) else scalar(inputs)
    if isinstance(values, str):
        yield Input("inputs", text=str(values))
        return
    if not _are_several(values):
        raise wrong("inputs", f"is of type {type(inputs).__name__}", INPUTS_ALLOWED)
    index = -1
    for index, value in enumerate(values):
        yield parse_input(plain(value), f"inputs[{index}]")
    if index < 0:
        raise InvalidRequest("inputs has 0 items, must have 1 or more", param="inputs", allowed=INPUTS_ALLOWED)


def listed(documents: Any) -> list[Any]:
    """The documents of a call as a list.

    Raises:
        InvalidRequest: they are none, or no several of anything.
    """
    values = scalar(documents)
    if isinstance(values, str | Mapping) or not _are_several(values):
        raise wrong("documents", f"is of type {type(documents).__name__}", DOCUMENTS_ALLOWED)
    several = [plain(value) if isinstance(value, Mapping) else value for value in values]
    if not several:
        sentence = "documents has 0 items, must have 1 or more"
        raise InvalidRequest(sentence, param="documents", allowed=DOCUMENTS_ALLOWED)
    return several


def _are_several(values: Any) -> bool:
    return isinstance(values, Sequence | Iterator) and not isinstance(values, bytes | bytearray | memoryview)


def plain(value: Any) -> Any:
    """An input with the HTTP API's own types: pairs of texts are objects there, token ids a list."""
    if isinstance(value, Mapping):
        return {
            str(name): each.tolist() if hasattr(each, "tolist") else list(each) if isinstance(each, tuple) else each
            for name, each in value.items()
        }
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value):
        return dict(zip(("text", "text_pair"), value, strict=True))
    return value


def scalar(value: Any) -> Any:
    """A Python number in place of a NumPy one, a list in place of an array."""
    return value.tolist() if hasattr(value, "tolist") else value
