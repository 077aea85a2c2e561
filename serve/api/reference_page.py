"""The page at `/docs`: the OpenAPI description to read and to try, which loads nothing from elsewhere."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from attenuator.api import CLASSIFY
from attenuator.serve.api.documentation import reference_name, type_text

REFERENCE_ASSETS = frozenset({"dom.js", "icon.svg", "reference.js", "service.js", "style.css"})  # below page/
OPEN = ("ClassifyRequest", "Classification")  # types that are shown at once
HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Attenuator: HTTP reference</title>
<link rel="icon" href="page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="page/style.css">
<script type="module" src="page/reference.js"></script>
</head>
<body>
<a class="skip" href="#reference">To the reference</a>
<header class="top"><a class="brand" href="."><img src="page/icon.svg" alt="" width="28" height="28">Attenuator</a>
<nav aria-label="Elsewhere"><a href="openapi.json">OpenAPI</a></nav></header>
<main class="reference">"""
TRY = """<section class="card" id="try"><h2>Try it</h2>
<form id="try-form">
<label for="try-model" hidden>Model</label><select id="try-model" hidden></select>
<label for="try-body">Body of POST {path}</label><textarea id="try-body" rows="9" spellcheck="false">{body}</textarea>
{key}<p><button class="primary">Send</button></p>
</form>
<p role="status" id="try-status"></p><pre id="try-answer" tabindex="0" aria-label="Answer" hidden></pre>
<h3>The same from a terminal</h3>
<pre tabindex="0" aria-label="curl">{curl}</pre></section>"""
KEY = '<label for="try-key">API key</label><input id="try-key" type="password" autocomplete="off">'


def example_body(openapi: dict[str, Any]) -> dict[str, Any]:
    """The body that the page opens with."""
    body: dict[str, Any] = openapi["paths"][CLASSIFY]["post"]["requestBody"]["content"]["application/json"]["example"]
    return body


def curl(openapi: dict[str, Any], base_url: str) -> str:
    """A curl command that works with the service that shows it."""
    key = ' -H "Authorization: Bearer $ATTENUATOR_API_KEY"' if needs_key(openapi) else ""
    return (
        f"curl -s {shlex.quote(base_url.rstrip('/') + CLASSIFY)} -H 'Content-Type: application/json'{key} \\\n"
        f"  -d {shlex.quote(json.dumps(example_body(openapi)))}"
    )


def needs_key(openapi: dict[str, Any]) -> bool:
    """Whether classifying needs an API key."""
    return "security" in openapi["paths"][CLASSIFY]["post"]


def reference_page(openapi: dict[str, Any], base_url: str) -> str:
    """The OpenAPI description as a complete HTML document, for a service that was reached at an address."""
    info = openapi["info"]
    about = f"{info['title']} {info['version']}. {info['description']}"
    tried = TRY.format(
        path=CLASSIFY,
        body=escape(json.dumps(example_body(openapi), indent=2, ensure_ascii=False)),
        key=KEY if needs_key(openapi) else "",
        curl=escape(curl(openapi, base_url)),
    )
    parts = [
        HEAD,
        _contents(openapi),
        '<article id="reference" tabindex="-1">',
        f"<h1>HTTP reference</h1><p>{escape(about)}</p>",
        tried,
        '<h2 id="routes">Routes</h2>',
        *(_route(*row) for row in _operations(openapi)),
        '<h2 id="types">Types</h2><p class="doc">A star marks a field that must be there.</p>',
        *(_type(name, schema) for name, schema in sorted(openapi["components"]["schemas"].items())),
        "</article></main></body></html>\n",
    ]
    return "\n".join(parts)


def _operations(openapi: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _anchor(method: str, path: str) -> str:
    return re.sub(r"\W+", "-", f"{method} {path}").strip("-").lower()


def _contents(openapi: dict[str, Any]) -> str:
    routes = [(_anchor(method, path), f"{method} {path}") for method, path, _ in _operations(openapi)]
    types = [(name, name) for name in sorted(openapi["components"]["schemas"])]
    groups = "".join(
        f'<li><a href="#{title.lower()}">{title}</a><ul>{_links(rows)}</ul></li>'
        for title, rows in (("Routes", routes), ("Types", types))
    )
    contents = f'<ul><li><a href="#try">Try it</a></li>{groups}</ul>'
    return f'<nav class="contents" aria-label="Contents" tabindex="0">{contents}</nav>'


def _links(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<li><a href="#{escape(anchor)}">{escape(text)}</a></li>' for anchor, text in rows)


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}">{escape(name)}</a>'


def _route(method: str, path: str, operation: dict[str, Any]) -> str:
    answers = [
        (escape(code), escape(answer["description"]), _schema(answer))
        for code, answer in operation["responses"].items()
    ]
    body = _schema(operation.get("requestBody", {}))
    sends = f" Takes {body}." if body else ""
    return (
        f'<section class="card" id="{_anchor(method, path)}"><h3><code>{method} {escape(path)}</code></h3>'
        f"<p>{escape(operation.get('summary', ''))}.{sends}</p>"
        f"<details><summary>Answers: {', '.join(escape(code) for code, *_ in answers)}</summary>"
        f"{_table(f'Answers of {method} {path}', ('status', 'meaning', 'type'), answers)}</details></section>"
    )


def _schema(content: dict[str, Any]) -> str:
    """The type of a body or an answer, as a link."""
    schema = content.get("content", {}).get("application/json", {}).get("schema", {})
    return _link(reference_name(schema)) if "$ref" in schema else ""


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(field)}</code>{' *' if field in required else ''}",
            type_text(value, _link),
            escape(value.get("description", "")),
        )
        for field, value in schema.get("properties", {}).items()
    ] or [("", type_text(schema, _link), "")]  # a list, or one of several types
    doc = escape(schema.get("description", "").partition("\n")[0])
    return (
        f'<details class="card"{" open" if name in OPEN else ""}><summary><code>{escape(name)}</code> {doc}</summary>'
        f'<div id="{escape(name)}">{_table(name, ("field", "type", "meaning"), rows)}</div></details>'
    )


def _table(label: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are HTML."""
    cells = "".join(f'<th scope="col">{text}</th>' for text in head)
    body = "".join("<tr>" + "".join(f"<td>{text}</td>" for text in row) + "</tr>" for row in rows)
    scrolled = f'<div class="scrolled" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{scrolled}<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"
