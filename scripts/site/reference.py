"""A hook of mkdocs: the parts of pages that follow from the code.

The HTTP reference is the service's own OpenAPI description, the settings are the commands' own; neither can be stale.
"""

import importlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from attenuator.commandline import COMMAND_SETTINGS, ENV_PREFIX, CommandSettings
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.documentation import type_text
from attenuator.serve.api.routes import Routes
from attenuator.serve.app import create_api
from attenuator.serve.engine import Engine
from attenuator.serve.observe.metrics import Metrics
from attenuator.serve.settings import ServeSettings


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


def openapi() -> dict[str, Any]:
    """The description of a service that has no model yet and all of its routes."""
    settings = ServeSettings(api_key=SecretStr("key"), admin_key=SecretStr("admin"))
    engine = Engine(settings)
    keys = KeyRing(settings.api_key, settings.api_keys, settings.admin_key)
    return create_api(Routes(engine, settings, keys, Metrics().exposition), engine).openapi()


def linked(name: str) -> str:
    """The name of a type, with a link to it."""
    return f"[{name}](#{name.lower()})"


def fields_of(schema: dict[str, Any]) -> str:
    """The fields of a type, as a table; its own type where it has none."""
    if "properties" not in schema:
        return type_text(schema, linked) + "\n"
    required = schema.get("required", [])
    rows = [
        (f"`{name}`{' *' * (name in required)}", type_text(value, linked), value.get("description", ""))
        for name, value in schema["properties"].items()
    ]
    return table(("field", "type", "meaning"), rows)


def operation_of(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> Iterable[str]:
    """One route."""
    yield f"## {method.upper()} {path}\n"
    yield f"{operation.get('summary', '')}. {operation.get('description', '')}".strip(". ") + ".\n"
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [(f"`{each['name']}`", each["in"], each.get("description", "")) for each in parameters]
        yield table(("parameter", "in", "meaning"), rows)
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        name = str(content["schema"]["$ref"]).rpartition("/")[2]
        yield f"The body is {linked(name)}:\n"
        yield fields_of(schemas[name])
        yield f"```json\n{json.dumps(content['example'], indent=2)}\n```\n"
    answers = []
    for status, answer in operation["responses"].items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
        answers.append((status, answer["description"], type_text(schema, linked) if schema else ""))
    yield table(("status", "meaning", "body"), answers)


def http_page() -> str:
    """The HTTP reference, in Markdown."""
    described = openapi()
    schemas = described["components"]["schemas"]
    parts: list[str] = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts += operation_of(method, path, operation, schemas)
    parts.append("## Types\n")
    for name, schema in sorted(schemas.items()):
        parts += [f"### {name}\n", schema.get("description", "") + "\n", fields_of(schema)]
    return "\n".join(parts)


def default_of(field: FieldInfo) -> str:
    """A setting's default, as one would write it; empty where leaving it out means something of its own."""
    if field.is_required():
        return "must be set"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", []):
        return ""
    return "off" if value is False else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def settings_page() -> str:
    """Every setting of every command, in Markdown."""
    parts: list[str] = []
    for path in COMMAND_SETTINGS:
        module, _, name = path.partition(":")
        imported = importlib.import_module(module)
        settings: type[CommandSettings] = getattr(imported, name)
        rows = [
            (
                f"`--{field_name.replace('_', '-')}`",
                f"`{ENV_PREFIX}{field_name.upper()}`",
                default_of(field),
                field.description or "",
            )
            for field_name, field in settings.model_fields.items()
        ]
        parts += [f"## attenuator {imported.COMMAND}\n", (settings.__doc__ or "").strip().partition("\n")[0] + "\n"]
        parts += [table(("flag", "variable", "default", "meaning"), rows)] if rows else []
    return "\n".join(parts)


BUILT = {"<!-- built: openapi -->": http_page, "<!-- built: settings -->": settings_page}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Puts what follows from the code into the pages that have a place for it."""
    for place, content in BUILT.items():
        if place in markdown:
            markdown = markdown.replace(place, content())
    return markdown
