"""What a protocol says of itself so that its requests take the one path from a body to an answer (`serve.routes`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from starlette.responses import Response

from attenuator.api import Classification
from attenuator.errors import InvalidRequest
from attenuator.runtime import Model
from attenuator.serve.answers import json_response
from attenuator.serve.json_body import parse_json
from attenuator.serve.schema import ParsedRequest, model_name, parse_request

TRUNCATE, TIMEOUT = "truncate", "timeout_ms"


class Exchange(Protocol):
    """One request and its answer, in the form of a protocol."""

    binary: bool
    """Whether the body may be followed by bytes that are not JSON."""
    model_places: str
    """Where a request may name its model, for the sentence on one that does not; empty where only its body can."""
    written: Mapping[str, str]
    """Fields that the shared path calls otherwise than the request does, and what the request calls them."""

    def parse(self, body: bytes) -> dict[str, Any]:
        """Reads the body; may run in a thread.

        Raises:
            MalformedBody: it is not what the protocol sends.
            InvalidRequest: it is not an object, or has too many values.
        """

    def model_name(self, fields: Mapping[str, Any], served: Iterable[str]) -> str | None:
        """The model that the request names, or None where it names none.

        Raises:
            InvalidRequest: it is not a text.
        """

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """Checks the fields of a body against its model.

        Raises:
            InvalidRequest: names the field, what was given and what is allowed.
            UnknownModel: the model is not served as the request wants it.
        """

    def response(self, model: Model, answer: Classification, headers: dict[str, str]) -> Response:
        """The answer in the protocol's form."""


class OwnExchange:
    """The form of `POST /v1/classify`."""

    binary = False
    model_places = ""
    written: Mapping[str, str] = {}
    parse = staticmethod(parse_json)
    model_name = staticmethod(model_name)
    request = staticmethod(parse_request)

    @staticmethod
    def response(model: Model, answer: Classification, headers: dict[str, str]) -> Response:
        """The answer as it is."""
        return json_response(answer, headers=headers, exclude_none=True)


OWN = OwnExchange()


def as_written(error: InvalidRequest, written: Mapping[str, str]) -> InvalidRequest:
    """An error of the shared path whose fields are called as the request calls them.

    Args:
        error: names a field, perhaps one inside another.
        written: `Exchange.written`.
    """
    param, sentence = error.param or "", str(error)
    name = re.split(r"[.\[]", param, maxsplit=1)[0]
    for each in {name, TRUNCATE} & written.keys():  # sentences on lengths advise to set the second
        sentence = re.sub(rf"(?<![\w.'/-]){each}(?!\w)", written[each], sentence)
    if name in written:
        param = written[name] + param.removeprefix(name)
    return type(error)(sentence, param=None if error.param is None else param, allowed=error.allowed)
