"""`/docs`: the OpenAPI description as one page, which loads nothing from elsewhere and so works offline."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:left;
vertical-align:top}code,pre{background:#f4f4f4;padding:.1rem .3rem}pre{padding:.8rem;overflow:auto}"""
EXAMPLE = """curl -s http://127.0.0.1:8000/v1/classify -H 'Content-Type: application/json' \\
  -d '{"inputs": ["A quiet, moving film.", "Two hours I want back."], "top_k": 2}'"""


def page(openapi: dict[str, Any]) -> str:
    """Renders the reference.

    Args:
        openapi: the application's OpenAPI description.

    Returns:
        A complete HTML document.
    """
    schemas = openapi["components"]["schemas"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Attenuator</title><style>{STYLE}</style>",
        f"<h1>{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}</h1>",
        f"<p>{escape(openapi['info']['description'])} The same as <a href=/openapi.json>OpenAPI</a>.</p>",
        f"<pre>{escape(EXAMPLE)}</pre>",
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
            (field + (" *" if field in required else ""), _kind(value), value.get("description", ""))
            for field, value in schema.get("properties", {}).items()
        ]
        parts.append(_table(("field (* required)", "type", "meaning"), rows))
    return "\n".join(parts) + "</html>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(text))}" for text in row) for row in rows)
    return f"<table><tr>{cells}{body}</table>"


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "anyOf" in value:
        return " or ".join(_kind(one) for one in value["anyOf"])
    kind = str(value.get("type", "any"))
    if kind == "array":
        kind = f"list of {_kind(value.get('items', {}))}"
    bounds = [f"{value[key]:g}" for key in ("minimum", "maximum") if key in value]
    if bounds:
        kind += " from " + " to ".join(bounds)
    return kind + (f" (default {json.dumps(value['default'])})" if value.get("default") is not None else "")
