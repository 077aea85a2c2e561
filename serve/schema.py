"""The request and answer of `POST /v1/classify`: strict, unknown fields refused, one sentence for whatever is wrong.

Knob fields are derived from the operators' specs; their values are checked against the model's own bounds.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import SkipJsonSchema

from attenuator.errors import InvalidRequest, UnknownField
from attenuator.ops import KNOBS, SEQUENCE_OUTPUTS
from attenuator.ops.knobs import KnobValue, shown
from attenuator.ops.spec import SEED_HIGH
from attenuator.runtime import Input, KnobTable, Model
from attenuator.serve.errors import MalformedBody

MAX_INPUTS = 256
MAX_TIMEOUT_MS = 3_600_000.0
INPUT_KINDS = 'a text, {"text": ..}, {"text": .., "text_pair": ..} or {"token_ids": [..]}'


class Strict(BaseModel):
    """Unknown fields are refused; booleans and strings are not numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextInput(Strict):
    """A text, or a pair of texts."""

    text: str = Field(min_length=1)
    text_pair: str | SkipJsonSchema[None] = None


class TokenInput(Strict):
    """Token ids, used as given, special tokens included."""

    token_ids: list[int] = Field(min_length=1)


class Options(Strict):
    """The fields of a request besides inputs and knobs; each description is also what error sentences say."""

    model: str | SkipJsonSchema[None] = Field(None, description="the name of a served model")
    seed: Annotated[int, Field(ge=0, le=SEED_HIGH)] | None = Field(
        None, description=f"a whole number from 0 to {SEED_HIGH}, or null to have one drawn"
    )
    timeout_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] | SkipJsonSchema[None] = Field(
        None, description=f"a number of milliseconds above 0, at most {MAX_TIMEOUT_MS:g}"
    )
    top_k: Annotated[int, Field(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="a whole number from 1 to the number of labels"
    )
    truncate: bool = Field(False, description="true or false")
    return_logits: bool = Field(False, description="true or false")


def _documented() -> type[BaseModel]:
    fields: dict[str, Any] = {
        "inputs": (
            str | Annotated[list[str | TextInput | TokenInput], Field(min_length=1, max_length=MAX_INPUTS)],
            Field(..., description=f"a text, or 1 to {MAX_INPUTS} of: {INPUT_KINDS}"),
        )
    }
    for knob in KNOBS.values():
        number: Any = int if knob.dtype == "int32" else float
        note = f"{knob.doc} The model's own bounds and default are in GET /v1/models."
        fields[knob.name] = (number, Field(None, ge=number(knob.low), le=number(knob.high), description=note))
    return create_model("ClassifyRequest", __base__=Options, __doc__="Body of POST /v1/classify.", **fields)


ClassifyRequest = _documented()


class LabelScore(BaseModel):
    """A label with its score."""

    label: str
    score: float


class PredictionBody(BaseModel):
    """The answer for one input."""

    label: str = Field(description="the label with the highest score")
    score: float = Field(description="its score: softmax, or sigmoid for multi-label models")
    labels: list[str] | SkipJsonSchema[None] = Field(None, description="multi-label: at or above their threshold")
    scores: list[LabelScore] | SkipJsonSchema[None] = Field(None, description="with top_k: the best, highest first")
    logits: list[float] | SkipJsonSchema[None] = Field(None, description="with return_logits: in the model's order")


class ClassifyResponse(BaseModel):
    """Answer of POST /v1/classify."""

    model: str
    revision: str = Field(description="SHA-256 that names the bundle's exact content")
    device: str = Field(description="cpu, or cuda:0 with the number of the device")
    predictions: list[PredictionBody]
    knobs: dict[str, float] = Field(description="the values that were used")
    requested: dict[str, float] = Field(description="the values that the caller gave")
    chosen_by: str = Field(description="caller or default")
    seed: int
    tokens: list[int] = Field(description="per input")
    value_flops: list[float] | SkipJsonSchema[None] = Field(
        None, description=f"{SEQUENCE_OUTPUTS['value_flops'].doc}, per input; of models that say so"
    )
    timing_ms: dict[str, float] = Field(description="tokenize, queue, compute, total")


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    Attributes:
        items: the inputs.
        options: fields besides inputs and knobs.
        knobs: a value for every knob of the model.
        requested: those that the caller gave.
        seed: as given; None draws one, absent takes the server's.
        has_seed: whether the caller said anything about the seed.
    """

    items: list[Input]
    options: Options
    knobs: dict[str, KnobValue]
    requested: dict[str, KnobValue]
    has_seed: bool


def parse_json(body: bytes) -> dict[str, Any]:
    """Reads a body.

    Raises:
        MalformedBody: not UTF-8, not JSON, NaN or Infinity, or nested too deep.
        InvalidRequest: not an object, or a field twice.
    """
    try:
        raw = json.loads(body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8: byte {error.start} is {body[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        what = "empty" if not body.strip() else f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise MalformedBody(f"the body is {what}") from None
    except RecursionError:
        raise MalformedBody("the body is nested too deep") from None
    except ValueError as error:  # an integer with thousands of digits
        raise MalformedBody(f"the body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the body is {shown(raw)}, must be an object", allowed='{"inputs": ..}')
    return raw


def parse_request(raw: Mapping[str, Any], model: Model) -> Request:
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
        if name not in Options.model_fields and name not in KNOBS and name != "inputs":
            raise unknown_field(name, model.knobs)
    requested = {name: raw[name] for name in raw if name in KNOBS}
    knobs = model.knobs.check(requested)
    options = parse_options({name: value for name, value in raw.items() if name in Options.model_fields})
    labels = len(model.manifest.labels)
    if options.top_k is not None and options.top_k > labels:
        allowed = f"a whole number from 1 to {labels}"
        raise InvalidRequest(f"top_k is {shown(options.top_k)}, must be {allowed}", param="top_k", allowed=allowed)
    if "inputs" not in raw:
        raise InvalidRequest("inputs is missing", param="inputs", allowed=_inputs_allowed())
    items = list(parse_inputs(raw["inputs"]))
    return Request(items, options, knobs, {name: knobs[name] for name in requested}, "seed" in raw)


def parse_options(raw: Mapping[str, Any]) -> Options:
    """Checks the fields besides inputs and knobs.

    Raises:
        InvalidRequest: names the field.
    """
    for name, value in raw.items():
        if value is None and name != "seed":
            raise _wrong(name, value)
    try:
        return Options.model_validate(raw)
    except ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise _wrong(name, raw[name]) from None


def parse_inputs(raw: Any) -> Iterator[Input]:
    """Checks the inputs' shape; what they hold is checked when they are tokenized.

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
    if not 1 <= len(raw) <= MAX_INPUTS:
        raise InvalidRequest(
            f"inputs has {len(raw)} items, must have 1 to {MAX_INPUTS}",
            param="inputs",
            allowed=f"1 to {MAX_INPUTS} items",
        )
    for index, value in enumerate(raw):
        where = f"inputs[{index}]"
        if isinstance(value, str):
            yield Input(where, text=value)
        elif isinstance(value, dict):
            yield _object(value, where)
        else:
            raise InvalidRequest(f"{where} is {shown(value)}, must be {INPUT_KINDS}", param=where, allowed=INPUT_KINDS)


def _object(value: Mapping[str, Any], where: str) -> Input:
    for name in value:
        if name not in ("text", "text_pair", "token_ids"):
            raise UnknownField(
                f"{where} has an unknown field '{name[:60]}', must be {INPUT_KINDS}",
                param=f"{where}.{name[:60]}",
                allowed=INPUT_KINDS,
            )
    if ("token_ids" in value) == ("text" in value) or ("token_ids" in value and "text_pair" in value):
        raise InvalidRequest(f"{where} must have either text or token_ids", param=where, allowed=INPUT_KINDS)
    for name in ("text", "text_pair"):
        if name in value and not isinstance(value[name], str):
            raise InvalidRequest(
                f"{where}.{name} is {shown(value[name])}, must be a text", param=f"{where}.{name}", allowed="a text"
            )
    ids = value.get("token_ids")
    if "token_ids" in value and not isinstance(ids, list):
        raise InvalidRequest(
            f"{where}.token_ids is {shown(ids)}, must be a list of whole numbers",
            param=f"{where}.token_ids",
            allowed="a list of whole numbers",
        )
    field = "token_ids" if ids is not None else "text"
    return Input(f"{where}.{field}", value.get("text"), value.get("text_pair"), ids)


def unknown_field(name: str, knobs: KnobTable) -> UnknownField:
    """The error for a field that no request has, with the closest one that it may have."""
    known = ["inputs", *Options.model_fields, *knobs.names]
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f", must be one of {', '.join(known)}"
    return UnknownField(f"unknown field '{name[:60]}'{hint}", param=name[:60], allowed=", ".join(known))


def _wrong(name: str, value: Any) -> InvalidRequest:
    allowed = str(Options.model_fields[name].description)
    return InvalidRequest(f"{name} is {shown(value)}, must be {allowed}", param=name, allowed=allowed)


def _inputs_allowed() -> str:
    return f"a text, or a list of 1 to {MAX_INPUTS} items, each {INPUT_KINDS}"


def _no_constant(name: str) -> None:
    raise MalformedBody(f"the body is not JSON: {name} is no number there")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        # One pass: a body of megabytes may hold a million fields, and this runs on the event loop.
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))[:60]  # type: ignore[func-returns-value]
        raise InvalidRequest(f"the field '{twice}' is there twice", param=twice, allowed="each field once")
    return made
