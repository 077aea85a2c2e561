"""The check of a request: strict, unknown fields refused, one sentence for whatever is wrong.

What a request may have stands in `attenuator.api`; knob values are checked against the model's own bounds. Whatever
here and in `peers/` finds a fault raises `InvalidRequest`, which names the field, what was given and what is allowed.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from attenuator.api import INPUT_KINDS, MAX_INPUTS, Options
from attenuator.errors import InvalidRequest, UnknownField, closest
from attenuator.json_body import MalformedBody
from attenuator.ops import KNOBS
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.tokens import MAX_FIELD_CHARACTERS
from attenuator.serve.accuracy.plan import Asked

Fields = TypeVar("Fields", bound=BaseModel)
OPTIONS = tuple(Options.model_fields)
TRUNCATE, TIMEOUT = "truncate", "timeout_ms"
HEADER = "Attenuator-Parameters"  # where the bodies of another server's protocol have no room for knobs and options
INPUTS_ALLOWED = f"a text, or a list of 1 to {MAX_INPUTS} items, each {INPUT_KINDS}"


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A checked request.

    Attributes:
        items: the inputs.
        options: fields besides inputs and knobs.
        asked: what these and the knobs say about its accuracy.
        has_seed: whether the caller set `seed`: null draws one, and without the field the server's own applies.
    """

    items: list[Input]
    options: Options
    asked: Asked
    has_seed: bool


def model_name(raw: Mapping[str, Any], served: Iterable[str]) -> str | None:
    """The model that a body names, or None where it names none."""
    name = raw.get("model")
    if "model" not in raw or isinstance(name, str):
        return name
    sentence = f"model is {shown(name)}, must be the name of a served model"
    raise InvalidRequest(sentence, param="model", allowed=", ".join(served))


def parse_request(raw: Mapping[str, Any], model: Model) -> ParsedRequest:
    """Checks the fields of a body against the model that it names."""
    for name in raw:
        if name not in OPTIONS and name not in KNOBS and name != "inputs":
            raise unknown_field(name, ["inputs", *OPTIONS, *model.knobs.names])
    return assemble(raw, model, parse_inputs(raw))


def assemble(fields: Mapping[str, Any], model: Model, inputs: Iterable[Input]) -> ParsedRequest:
    """Checks the values of a request's fields, whose names are known, and puts it together.

    Args:
        fields: knobs and options.
        model: the model that it asks.
        inputs: checked as they are read.
    """
    requested: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in fields.items():
        (requested if name in KNOBS else others)[name] = value
    others.pop("inputs", None)  # they come as an argument
    knobs = model.knobs.check(requested)
    options = check_values(Options, others, nullable=("seed",))
    asked = Asked.of(model, options, knobs, requested)
    labels = len(model.manifest.labels)
    if options.top_k is not None and options.top_k > labels:
        raise wrong("top_k", f"is {shown(options.top_k)}", f"a whole number from 1 to {labels}")
    items = list(inputs)
    return ParsedRequest(items, options, asked, "seed" in fields)


def check_values(
    kind: type[Fields], raw: Mapping[str, Any], nullable: Collection[str] = (), prefix: str = ""
) -> Fields:
    """Checks the values of fields by their types and bounds.

    Args:
        kind: has the fields; their descriptions say, up to a colon, what is allowed.
        raw: values by name.
        nullable: fields that may be null.
        prefix: of the object that holds them, with a dot at its end.
    """
    for name, value in raw.items():
        if value is None and name not in nullable:
            raise wrong(prefix + name, "is null", _allowed(kind, name))
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        place, *inner = error.errors(include_url=False)[0]["loc"]
        name = str(place)
        value = raw.get(name)
        if name not in raw:
            state = "is missing"
        elif isinstance(value, list) and inner and isinstance(inner[0], int):
            state = f"has {shown(value[inner[0]])}"
        else:
            state = f"is {shown(value)}"
        raise wrong(prefix + name, state, _allowed(kind, name)) from None


def parse_inputs(fields: Mapping[str, Any]) -> Iterator[Input]:
    """Checks the types of a body's inputs; their texts and token ids are checked when they are tokenized."""
    raw = fields.get("inputs")
    if isinstance(raw, str):
        yield Input("inputs", text=raw)
        return
    if "inputs" not in fields:
        raise InvalidRequest("inputs is missing", param="inputs", allowed=INPUTS_ALLOWED)
    if not isinstance(raw, list):
        raise wrong("inputs", f"is {shown(raw)}", INPUTS_ALLOWED)
    check_count(len(raw), "inputs")
    for index, value in enumerate(raw):
        where = f"inputs[{index}]"
        if isinstance(value, str):
            yield Input(where, text=value)
        elif isinstance(value, dict):
            yield Input.of(value, where)
        else:
            raise wrong(where, f"is {shown(value)}", INPUT_KINDS)


def check_count(count: int, param: str) -> None:
    """Refuses a request without inputs, or with too many."""
    if not 1 <= count <= MAX_INPUTS:
        sentence = f"{param} has {count} items, must have 1 to {MAX_INPUTS}"
        raise InvalidRequest(sentence, param=param, allowed=f"1 to {MAX_INPUTS} items")


def unknown_field(name: str, known: Sequence[str], prefix: str = "") -> UnknownField:
    """The error for a field that a request cannot have, with the field of the closest name.

    Args:
        name: of the field.
        known: names that there may be.
        prefix: of the object that holds it, with a dot at its end.
    """
    close = closest(name, known)
    hint = f"; did you mean {close[0]}?" if close else f", must be one of {', '.join(known)}"
    short = prefix + name[:MAX_FIELD_CHARACTERS]
    return UnknownField(f"the field '{short}' is unknown{hint}", param=short, allowed=", ".join(known))


def wrong(param: str, state: str, allowed: str, more: str = "") -> InvalidRequest:
    """The error for a field with a wrong value, such as `seed is a text, must be a whole number`; `more` ends it."""
    return InvalidRequest(f"{param} {state}, must be {allowed}{more}", param=param, allowed=allowed)


def _allowed(kind: type[BaseModel], name: str) -> str:
    return str(kind.model_fields[name].description).partition(": ")[0]  # what follows says what it is for


def as_written(error: InvalidRequest, written: Mapping[str, str]) -> InvalidRequest:
    """An error of the shared path whose fields are called as the request calls them.

    Args:
        error: names a field, perhaps one inside another.
        written: `answers.Form.written`.
    """
    param, sentence = error.param or "", str(error)
    name = re.split(r"[.\[]", param, maxsplit=1)[0]
    for each in {name, TRUNCATE} & written.keys():  # sentences on lengths advise to set the second
        sentence = re.sub(rf"(?<![\w.'/-]){each}(?!\w)", written[each], sentence)
    if name in written:
        param = written[name] + param.removeprefix(name)
    return type(error)(sentence, param=None if error.param is None else param, allowed=error.allowed)


def refuse_elsewhere(request: Request, place: str | None = "the JSON body", *, takes_header: bool = True) -> None:
    """Refuses fields that stand beside the body: if they were ignored, a knob would seem to be set.

    Args:
        request: the request.
        place: where the fields of a query string should stand; None where the route takes none.
        takes_header: whether they may stand in `HEADER`.
    """
    if not takes_header and HEADER in request.headers:
        sentence = f"the header {HEADER} is not accepted here: put its fields in the JSON body"
        raise UnknownField(sentence, param=HEADER, allowed="no such header")
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
