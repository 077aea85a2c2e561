"""The OpenAPI description of the routes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from attenuator.api import MODELS, Body, Classification, ErrorBody, ModelInfo, ModelList
from attenuator.classify_request import ClassifyRequest
from attenuator.serve.api.schema import HEADER

HEADER_NOTE = "knobs, goals and further fields of POST /v1/classify, for clients whose requests have no room for them"
METRICS = "/metrics"
MODEL = f"{MODELS}/{{name}}"
LOWER_BOUNDS = {"from": "minimum", "above": "exclusiveMinimum"}
FILM_LABELS, FILM_INPUTS = {"negative", "positive"}, ["A quiet, moving film.", "Two hours I want back."]
TOKEN_INPUTS = ["My name is Maria Santos.", "Write to maria.santos@example.com."]

Answers = dict[int | str, dict[str, Any]]


def _error(meaning: str, **headers: str) -> dict[str, Any]:
    described = {
        name.replace("_", "-"): {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
    }
    return {"model": ErrorBody, "description": meaning} | ({"headers": described} if described else {})


NO_KEY = _error("the API key is missing or wrong", WWW_Authenticate="Bearer")
RETRY = "seconds to wait before the next attempt"
NOT_READY = _error("the service is starting, draining or stopped", Retry_After=RETRY)
CLASSIFY_ANSWERS: Answers = {
    200: {"model": Classification, "description": "one prediction per input"},
    400: _error("the body is not valid JSON, or it is compressed"),
    401: NO_KEY,
    404: _error("no served model has that name"),
    408: _error("the body did not arrive in time, or too many bodies were arriving"),
    413: _error("the body is larger than the server allows"),
    415: _error("the Content-Type is not application/json in UTF-8"),
    422: _error("a field has a wrong value or is unknown; param names it, allowed says what it may be"),
    429: _error(
        "too many requests or tokens are waiting, or too many for both goals, or the API key was used too often",
        Retry_After=RETRY,
    ),
    500: _error("the model failed on this request; the service's log says why"),
    503: NOT_READY,
    504: _error("timeout_ms passed before the answer was ready; the work was cancelled"),
}
MODELS_ANSWERS: Answers = {
    200: {"model": ModelList, "description": "every served model"},
    401: NO_KEY,
    503: NOT_READY,
}
RATE_LIMITED = _error("the API key was used too often", Retry_After=RETRY)
NO_ADMIN_KEY = _error("the admin key is missing or wrong", WWW_Authenticate="Bearer")
PUT_ANSWERS: Answers = {
    200: {"model": ModelInfo, "description": "the model, which has replaced another revision for new requests"},
    201: {"model": ModelInfo, "description": "the model, which is new"},
    401: NO_ADMIN_KEY,
    **{status: CLASSIFY_ANSWERS[status] for status in (400, 408, 413, 415)},
    422: _error("the bundle cannot be served; the model stays as it was"),
    503: NOT_READY,
}
DELETE_ANSWERS: Answers = {
    204: {"description": "new requests do not get the model any more"},
    401: NO_ADMIN_KEY,
    404: CLASSIFY_ANSWERS[404],
    422: _error("the request has query parameters"),
    503: NOT_READY,
}
METRICS_ANSWERS: Answers = {
    200: {"content": {"text/plain": {}}, "description": "every metric; docs/reference/metrics.md lists them"},
}


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A body that a route reads without FastAPI.

    Attributes:
        kind: its type; the name stands in the description.
        example: one that works.
        header: what `HEADER` may hold besides, as JSON; None where the route does not take it.
        method: of the route.
    """

    kind: type[BaseModel]
    example: dict[str, Any]
    header: type[BaseModel] | None = None
    method: str = "post"


class LoadRequest(Body):
    """Body of PUT /v1/models/{name}."""

    bundle: str = Field(min_length=1, description="the path of a bundle inside a folder of --bundle-root")


OTHER_HOST = {  # as FastAPI writes the other answers
    "description": "the Host header names neither this host nor one of --allowed-hosts",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
}
LOAD_BODY = RequestBody(LoadRequest, {"bundle": "bundles/reviews"}, method="put")


def reference(kind: type[BaseModel]) -> dict[str, str]:
    """Reference to a type of the description."""
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def schemas_of(kind: type[BaseModel]) -> dict[str, Any]:
    """A type and those that it consists of, by name."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    parts: dict[str, Any] = schema.pop("$defs", {}) | {kind.__name__: schema}
    for part in parts.values():
        for field in part.get("properties", {}).values():
            if field.get("default", 0) is None:  # leaving a field out is not the same as sending null
                del field["default"]
    return parts


@dataclass(frozen=True, slots=True)
class Example:
    """What examples ask: a served model, None where none is loaded, its labels, and whether these are tokens'."""

    model: str | None = None
    labels: tuple[str, ...] = ()
    of_tokens: bool = False

    @property
    def named(self) -> dict[str, str]:
        """The field that names the model."""
        return {} if self.model is None else {"model": self.model}

    @property
    def inputs(self) -> list[str]:
        """Two texts that the model could be asked."""
        if self.of_tokens:
            return TOKEN_INPUTS
        if not self.labels or {label.lower() for label in self.labels} == FILM_LABELS:
            return FILM_INPUTS
        return [f"A text about {label}." for label in (self.labels[0], self.labels[-1])]


def classify_body(example: Example) -> RequestBody:
    """The body of `POST /v1/classify`."""
    top_k = min(2, len(example.labels) or 2)
    further = {} if example.of_tokens else {"top_k": top_k}
    return RequestBody(ClassifyRequest, example.named | {"inputs": example.inputs} | further)


def description(app: FastAPI, bodies: Mapping[str, RequestBody]) -> dict[str, Any]:
    """FastAPI's OpenAPI, completed with the request bodies by path, which the routes read without FastAPI."""
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for methods in described["paths"].values():
        for operation in methods.values():  # FastAPI adds its own 422 where a path has a parameter; a text always fits
            answers = operation["responses"] | {"421": OTHER_HOST}
            if "HTTPValidationError" in json.dumps(answers.get("422")):
                del answers["422"]
            operation["responses"] = dict(sorted(answers.items()))
    schemas = described["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, body in bodies.items():
        operation = described["paths"].get(path, {}).get(body.method)
        if operation is None:  # the settings leave the route out
            continue
        schemas |= schemas_of(body.kind)
        content = {"schema": reference(body.kind), "example": body.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
        if body.header is not None:
            schemas |= schemas_of(body.header)
            header = {"name": HEADER, "in": "header", "required": False, "description": HEADER_NOTE}
            header["content"] = {"application/json": {"schema": reference(body.header)}}
            operation.setdefault("parameters", []).append(header)
    return described


def reference_name(schema: dict[str, Any]) -> str:
    """The name of the type that a schema refers to."""
    return str(schema["$ref"]).rpartition("/")[2]


def type_text(value: dict[str, Any], shown: Callable[[str], str] = str) -> str:
    """The type of a field in words, from its schema; `shown` writes the name of a type of the description."""
    if "$ref" in value:
        return shown(reference_name(value))
    if "anyOf" in value:
        return " or ".join(type_text(one, shown) for one in value["anyOf"])
    kind = str(value.get("type", "any"))
    if kind == "array":
        kind = f"list of {type_text(value.get('items', {}), shown)}"
    low = [f"{word} {value[key]:.16g}" for word, key in LOWER_BOUNDS.items() if key in value]
    high = [f"{'to' if low else 'up to'} {value['maximum']:.16g}"] if "maximum" in value else []
    kind = " ".join([kind, *low, *high])
    return kind + (f" (default {json.dumps(value['default'])})" if value.get("default") is not None else "")
