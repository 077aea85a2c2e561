"""The form of a protocol's requests and answers, which the one path from a body to an answer takes (`routes.py`)."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from attenuator.errors import InvalidRequest, UnknownField
from attenuator.json_body import MalformedBody, parse_json
from attenuator.runtime import Model
from attenuator.serve.api.answers import Answer, Write, json_response
from attenuator.serve.api.schema import ParsedRequest, model_name, parse_request

TRUNCATE, TIMEOUT = "truncate", "timeout_ms"


class Form(Protocol):
    """One request and its answer, in the form of a protocol."""

    types: Collection[str]
    """Types that its bodies may have besides JSON; an empty one where they may have none."""
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

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The answer in the protocol's form."""


class OwnForm:
    """The form of `POST /v1/classify`."""

    types: Collection[str] = ()
    model_places = ""
    written: Mapping[str, str] = {}
    parse = staticmethod(parse_json)
    model_name = staticmethod(model_name)

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """The request as it is."""
        self._parsed = parse_request(fields, model)
        return self._parsed

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The answer as it is."""
        return json_response(await write(answer.own_pieces(self._parsed)), headers=headers)


def as_written(error: InvalidRequest, written: Mapping[str, str]) -> InvalidRequest:
    """An error of the shared path whose fields are called as the request calls them.

    Args:
        error: names a field, perhaps one inside another.
        written: `Form.written`.
    """
    param, sentence = error.param or "", str(error)
    name = re.split(r"[.\[]", param, maxsplit=1)[0]
    for each in {name, TRUNCATE} & written.keys():  # sentences on lengths advise to set the second
        sentence = re.sub(rf"(?<![\w.'/-]){each}(?!\w)", written[each], sentence)
    if name in written:
        param = written[name] + param.removeprefix(name)
    return type(error)(sentence, param=None if error.param is None else param, allowed=error.allowed)


def refuse_query(request: Request, place: str | None = "the JSON body") -> None:
    """Refuses query parameters: if they were ignored, a knob would seem to be set.

    Args:
        request: the request.
        place: where such fields stand; None where the route takes none.

    Raises:
        UnknownField: names the first.
    """
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        short = name[:64]
        hint = f"put '{short}' in {place}" if place else f"leave '{short}' out"
        raise UnknownField(f"query parameters are not accepted: {hint}", param=short, allowed="no query string")


def refuse_encoding(request: Request) -> None:
    """Refuses a compressed body and says so; otherwise the error would only be that it is not JSON.

    Raises:
        MalformedBody: names the header and its value, or all values if it occurs more than once.
    """
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise MalformedBody(f"the body has Content-Encoding '{encoding[:40]}', must be sent without one")


def single_header(request: Request, name: str) -> str | None:
    """The value of a header; None where the request has no such header.

    Raises:
        MalformedBody: it is there more than once: what stands between here and the caller may have read another one.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise MalformedBody(f"the header {name} is there {len(values)} times, must be there once")
    return values[0] if values else None
