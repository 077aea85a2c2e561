"""TypeScript's declarations of the HTTP API's types, from the schemas that its OpenAPI description consists of."""

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from attenuator import __version__, errors
from attenuator.api import Classification, ErrorBody, ModelList
from attenuator.classify_request import ClassifyRequest
from attenuator.serve.api import errors as serve_errors
from attenuator.serve.api.documentation import Example, schemas_of
from attenuator.serve.api.peers import rerank_types
from attenuator.serve.api.peers.routes import RERANK_PATHS, ModelName, rerank_bodies

HEAD = "// Written by scripts/gen.py from the service's own types. Run `make gen` after a change there."
SCALARS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
WIDTH = 100  # of a comment
CLIENT_SIDE: set[type] = {errors.ServiceUnreachable, errors.UnexpectedAnswer}


def expression(schema: Mapping[str, Any]) -> str:
    """A schema as a type.

    Raises:
        ValueError: it says something that has no rule here.
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(expression(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        item = expression(schema["items"])
        return f"readonly ({item})[]" if " " in item else f"readonly {item}[]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{{ readonly [name: string]: {expression(schema['additionalProperties'])} }}"
    if kind in SCALARS:
        return SCALARS[kind]
    raise ValueError(f"no type of TypeScript stands for the schema {dict(schema)}")


def interface(name: str, schema: Mapping[str, Any]) -> str:
    """A schema of an object as an interface; fields that may be missing are optional."""
    lines = [*comment(schema.get("description"), ""), f"export interface {name} {{"]
    for field, value in schema["properties"].items():
        optional = "" if field in schema.get("required", ()) else "?"
        lines += comment(value.get("description"), "  ")
        lines.append(f"  {field}{optional}: {expression(value)};")
    return "\n".join([*lines, "}"])


def comment(text: str | None, indent: str) -> Iterable[str]:
    """A description as a comment; none where there is none."""
    lines = textwrap.wrap((text or "").replace("*/", "* /"), WIDTH, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return [f"{indent}/** {line} */" for line in lines]
    return [f"{indent}/**", *(f"{indent} * {line}" for line in lines), f"{indent} */"]


def error_codes() -> str:
    """The names of the errors that have a status of their own, and of those that clients raise."""
    known = CLIENT_SIDE | set(serve_errors.STATUS)
    kinds = [kind for module in (errors, serve_errors) for kind in vars(module).values() if isinstance(kind, type)]
    names = sorted({serve_errors.error_type(kind.__name__) for kind in kinds if known & set(kind.__mro__)})
    return "\n".join(["export type ErrorCode =", *(f'  | "{name}"' for name in names)]) + ";"


def declarations() -> str:
    """The module `api.d.ts` of the JavaScript client."""
    schemas: dict[str, Any] = {}
    rerank_request = rerank_bodies(Example(), ModelName)[RERANK_PATHS[0]].kind
    kinds: list[type[BaseModel]] = [ClassifyRequest, Classification, rerank_request, rerank_types.Ranking]
    kinds += [ModelList, ErrorBody]
    for kind in kinds:
        schemas |= schemas_of(kind)
    parts = [interface(name, schemas[name]) for name in sorted(schemas)]
    return "\n\n".join([HEAD, error_codes(), *parts]) + "\n"


def package(old: str) -> str:
    """The client's `package.json` with the version that the Python package has."""
    return json.dumps(json.loads(old) | {"version": __version__}, indent=2) + "\n"
