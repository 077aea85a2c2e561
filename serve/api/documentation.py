"""The OpenAPI description, and `/docs`: the same as one page, which loads nothing from elsewhere and works offline."""

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from attenuator.api import CLASSIFY, MODELS, Body, Classification, ClassifyRequest, ErrorBody, ModelInfo, ModelList
from attenuator.serve.api.schema import HEADER

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left;
vertical-align:top}code,pre{background:#f4f4f4;padding:.1rem .3rem}pre{padding:.8rem;overflow:auto}"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}
HEADER_NOTE = "knobs, goals and further fields of POST /v1/classify, for clients whose requests have no room for them"
METRICS = "/metrics"
MODEL = f"{MODELS}/{{name}}"
LOWER_BOUNDS = {"from": "minimum", "above": "exclusiveMinimum"}
EXAMPLE_INPUTS = ["A quiet, moving film.", "Two hours I want back."]

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
    """Where the description has a type."""
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


def model_field(model: str | None) -> dict[str, Any]:
    """The field of an example that names a served model; none where none is loaded."""
    return {} if model is None else {"model": model}


def classify_body(model: str | None) -> RequestBody:
    """The body of `POST /v1/classify`; the example names a served model where one is loaded."""
    return RequestBody(ClassifyRequest, model_field(model) | {"inputs": EXAMPLE_INPUTS, "top_k": 2})


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


def example(openapi: dict[str, Any], base_url: str) -> str:
    """A curl command that works with the service that shows it."""
    operation = openapi["paths"][CLASSIFY]["post"]
    body = operation["requestBody"]["content"]["application/json"]["example"]
    key = ' -H "Authorization: Bearer $ATTENUATOR_API_KEY"' if "security" in operation else ""
    return (
        f"curl -s {shlex.quote(base_url.rstrip('/') + CLASSIFY)} -H 'Content-Type: application/json'{key} \\\n"
        f"  -d {shlex.quote(json.dumps(body))}"
    )


def page(openapi: dict[str, Any], base_url: str) -> str:
    """The OpenAPI description as a complete HTML document, for a service that was reached at an address."""
    schemas = openapi["components"]["schemas"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Attenuator</title><style>{STYLE}</style>",
        f"<h1>{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}</h1>",
        f"<p>{escape(openapi['info']['description'])} The same as <a href=/openapi.json>OpenAPI</a>.</p>",
        f"<pre>{escape(example(openapi, base_url))}</pre>",
    ]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation.get('summary', ''))}</p>")
            answers = [(code, answer["description"]) for code, answer in operation["responses"].items()]
            parts.append(_table(("status", "meaning"), answers))
    for name, schema in sorted(schemas.items()):
        parts.append(f"<h2 id={escape(name)}>{escape(name)}</h2><p>{escape(schema.get('description', ''))}</p>")
        required = schema.get("required", [])
        rows = [
            (field + (" *" if field in required else ""), type_text(value), value.get("description", ""))
            for field, value in schema.get("properties", {}).items()
        ]
        parts.append(_table(("field (* required)", "type", "meaning"), rows))
    return "\n".join(parts) + "</html>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(text))}" for text in row) for row in rows)
    return f"<table><tr>{cells}{body}</table>"


def type_text(value: dict[str, Any], shown: Callable[[str], str] = str) -> str:
    """The type of a field in words, from its schema; `shown` writes the name of a type of the description."""
    if "$ref" in value:
        return shown(str(value["$ref"]).rpartition("/")[2])
    if "anyOf" in value:
        return " or ".join(type_text(one, shown) for one in value["anyOf"])
    kind = str(value.get("type", "any"))
    if kind == "array":
        kind = f"list of {type_text(value.get('items', {}), shown)}"
    low = [f"{word} {value[key]:.16g}" for word, key in LOWER_BOUNDS.items() if key in value]
    high = [f"{'to' if low else 'up to'} {value['maximum']:.16g}"] if "maximum" in value else []
    kind = " ".join([kind, *low, *high])
    return kind + (f" (default {json.dumps(value['default'])})" if value.get("default") is not None else "")
