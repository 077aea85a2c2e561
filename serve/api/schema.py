"""Checks the body of `POST /v1/classify`: strict, unknown fields refused, one sentence for whatever is wrong.

What a request may have stands in `attenuator.api`; knob values are checked against the model's own bounds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from attenuator.api import INPUT_KINDS, MAX_INPUTS, Options
from attenuator.errors import InvalidRequest, UnknownField, closest
from attenuator.ops import KNOBS
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.inputs import MAX_FIELD_CHARACTERS
from attenuator.serve.accuracy.plan import Asked

Fields = TypeVar("Fields", bound=BaseModel)
OPTIONS = tuple(Options.model_fields)


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
    """The model that a body names, or None where it names none.

    Raises:
        InvalidRequest: it is not a text.
    """
    name = raw.get("model")
    if "model" not in raw or isinstance(name, str):
        return name
    raise InvalidRequest(
        f"model is {shown(name)}, must be the name of a served model", param="model", allowed=", ".join(served)
    )


def parse_request(raw: Mapping[str, Any], model: Model) -> ParsedRequest:
    """Checks the fields of a body against a model.

    Args:
        raw: the body.
        model: the model that it names.

    Returns:
        The checked request.

    Raises:
        InvalidRequest: names the field, what was given and what is allowed.
    """
    for name in raw:
        if name not in OPTIONS and name not in KNOBS and name != "inputs":
            raise unknown_field(name, ["inputs", *OPTIONS, *model.knobs.names])
    return assemble({name: value for name, value in raw.items() if name != "inputs"}, model, _inputs_of(raw))


def assemble(fields: Mapping[str, Any], model: Model, inputs: Iterable[Input]) -> ParsedRequest:
    """Checks the values of a request's fields, whose names are known, and puts it together.

    Args:
        fields: knobs and options.
        model: the model that it asks.
        inputs: checked as they are read.

    Returns:
        The checked request.

    Raises:
        InvalidRequest: names the field, what was given and what is allowed.
    """
    requested = {name: fields[name] for name in fields if name in KNOBS}
    knobs = model.knobs.check(requested)
    options = parse_options({name: value for name, value in fields.items() if name not in KNOBS})
    asked = Asked.of(model, options, knobs, requested)
    labels = len(model.manifest.labels)
    if options.top_k is not None and options.top_k > labels:
        allowed = f"a whole number from 1 to {labels}"
        raise InvalidRequest(f"top_k is {shown(options.top_k)}, must be {allowed}", param="top_k", allowed=allowed)
    items = list(inputs)
    return ParsedRequest(items, options, asked, "seed" in fields)


def parse_options(raw: Mapping[str, Any]) -> Options:
    """Checks the fields besides inputs and knobs.

    Raises:
        InvalidRequest: names the field.
    """
    return check_values(Options, raw, nullable=("seed",))


def check_values(
    kind: type[Fields], raw: Mapping[str, Any], nullable: Collection[str] = (), prefix: str = ""
) -> Fields:
    """Checks the values of fields by their types and bounds.

    Args:
        kind: has the fields; their descriptions say, up to a colon, what is allowed.
        raw: values by name.
        nullable: fields that may be null.
        prefix: of the object that holds them, with a dot at its end.

    Raises:
        InvalidRequest: names the field.
    """
    for name, value in raw.items():
        if value is None and name not in nullable:
            raise _wrong(kind, name, value, prefix)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        name = str(place[0])
        allowed, param = _allowed(kind, name), prefix + name
        if name not in raw:
            raise InvalidRequest(f"{param} is missing, must be {allowed}", param=param, allowed=allowed) from None
        if isinstance(raw[name], list) and len(place) > 1 and isinstance(place[1], int):
            item = shown(raw[name][place[1]])
            raise InvalidRequest(f"{param} has {item}, must be {allowed}", param=param, allowed=allowed) from None
        raise _wrong(kind, name, raw[name], prefix) from None


def _inputs_of(raw: Mapping[str, Any]) -> Iterator[Input]:
    if "inputs" not in raw:
        raise InvalidRequest("inputs is missing", param="inputs", allowed=_inputs_allowed())
    yield from parse_inputs(raw["inputs"])


def parse_inputs(raw: Any) -> Iterator[Input]:
    """Checks the inputs' types; their texts and token ids are checked when they are tokenized.

    Raises:
        InvalidRequest: names the input.
    """
    if isinstance(raw, str):
        yield Input("inputs", text=raw)
        return
    if not isinstance(raw, list):
        raise InvalidRequest(
            f"inputs is {shown(raw)}, must be {_inputs_allowed()}", param="inputs", allowed=_inputs_allowed()
        )
    check_count(len(raw), "inputs")
    for index, value in enumerate(raw):
        where = f"inputs[{index}]"
        if isinstance(value, str):
            yield Input(where, text=value)
        elif isinstance(value, dict):
            yield Input.of(value, where)
        else:
            raise InvalidRequest(f"{where} is {shown(value)}, must be {INPUT_KINDS}", param=where, allowed=INPUT_KINDS)


def check_count(count: int, param: str) -> None:
    """Refuses a request without inputs, or with too many.

    Raises:
        InvalidRequest: names the field that holds them.
    """
    if not 1 <= count <= MAX_INPUTS:
        allowed = f"1 to {MAX_INPUTS} items"
        raise InvalidRequest(f"{param} has {count} items, must have 1 to {MAX_INPUTS}", param=param, allowed=allowed)


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


def _wrong(kind: type[BaseModel], name: str, value: Any, prefix: str) -> InvalidRequest:
    allowed, param = _allowed(kind, name), prefix + name
    return InvalidRequest(f"{param} is {shown(value)}, must be {allowed}", param=param, allowed=allowed)


def _allowed(kind: type[BaseModel], name: str) -> str:
    return str(kind.model_fields[name].description).partition(": ")[0]  # what follows says what it is for


def _inputs_allowed() -> str:
    return f"a text, or a list of 1 to {MAX_INPUTS} items, each {INPUT_KINDS}"
