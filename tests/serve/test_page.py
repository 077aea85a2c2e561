"""The playground's files: what is served at `/`, how, how large, and that nothing comes from elsewhere."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pydantic import SecretStr
from service import Service
from starlette.testclient import TestClient

from attenuator.bundle import read_manifest
from attenuator.classify_request import ClassifyRequest
from attenuator.ops import KNOBS, OPERATORS
from attenuator.runtime.tokens import TextEncoder
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.reference_page import REFERENCE_ASSETS
from attenuator.serve.api.routes import Routes
from attenuator.serve.app import create_api
from attenuator.serve.engine import Engine
from attenuator.serve.observe.metrics import Metrics
from attenuator.serve.page import FOLDER, INDEX, TYPES, read_assets
from attenuator.serve.settings import ServeSettings

BUNDLES = Path(__file__).resolve().parents[2] / "examples/bundles"
ASSETS = read_assets()
PARTS = {path: asset.content.decode() for path, asset in ASSETS.items() if not path.startswith("examples/")}
SVG = "http://www.w3.org/2000/svg"  # a name, never loaded
ROUTES = {path: "/" if path == INDEX else f"/page/{path}" for path in ASSETS}


class Tags(HTMLParser):
    """Every start tag of a document, with its attributes."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.rows: list[tuple[str, dict[str, str | None]]] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", sorted(ASSETS))
def test_a_file_is_served_with_its_type_and_not_again_while_it_is_current(service: Service, path: str) -> None:
    answer = service.client.get(ROUTES[path])
    assert (answer.status_code, answer.content) == (200, (FOLDER / path).read_bytes())
    assert answer.headers["Content-Type"] == TYPES[PurePosixPath(path).suffix]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-cache"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "data:" not in policy
    for known in (answer.headers["ETag"], f'"other", W/{answer.headers["ETag"]}', "*"):
        current = service.client.get(ROUTES[path], headers={"If-None-Match": known})
        assert (current.status_code, current.content) == (304, b"")
    assert service.client.get(ROUTES[path], headers={"If-None-Match": '"other"'}).status_code == 200
    head = service.client.head(ROUTES[path])
    assert (head.status_code, head.content, head.headers["ETag"]) == (200, b"", answer.headers["ETag"])


@pytest.mark.parametrize("path", ["nothing.js", "", "__init__.py", "../settings.py", "..%2fsettings.py", "examples"])
def test_nothing_else_is_served(service: Service, path: str) -> None:
    answer = service.client.get(f"/page/{path}")
    assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found")


def client(**settings: Any) -> TestClient:
    """A client of a service that is not started, with an API key."""
    chosen = ServeSettings(api_key=SecretStr("sesame"), **settings)
    engine = Engine(chosen)
    routes = Routes(engine, chosen, KeyRing(chosen.api_key, None), Metrics().exposition)
    return TestClient(create_api(routes, engine), follow_redirects=False)


def test_the_page_is_open_where_models_need_a_key() -> None:
    one = client()
    assert one.get("/v1/models").status_code == 401
    assert {one.get(route).status_code for route in ROUTES.values()} == {200}


def test_without_the_page_browsers_are_led_to_the_reference() -> None:
    one = client(no_page=True)
    answer = one.get("/")
    assert (answer.status_code, answer.headers["Location"]) == (307, "docs")
    assert answer.json()["classify"] == "POST /v1/classify"
    assert one.head("/").status_code == 307
    assert one.get("/page/main.js").status_code == 404
    reference = one.get("/docs")
    assert "<html" in reference.text
    assert "unsafe" not in reference.headers["Content-Security-Policy"]
    for path in REFERENCE_ASSETS:
        assert one.get(f"/page/{path}").status_code == 200
        assert set(re.findall(r'from "\./(.*?)"', PARTS[path])) <= REFERENCE_ASSETS


def test_the_page_is_small() -> None:
    assert sum(len(text.encode()) for text in PARTS.values()) < 117 * 1024
    assert max(len(text.splitlines()) for text in PARTS.values()) <= 400


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline() -> None:
    for path, text in PARTS.items():
        assert "//" not in re.sub(r"(?m)^\s*//.*|\s// .*", "", text.replace(SVG, "")), f"{path} has an address"
    for tag, attributes in Tags(PARTS[INDEX]).rows:
        assert tag not in ("style", "iframe", "base")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert tag != "script" or attributes.get("src")
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|setAttribute\(.style"
    assert not re.search(markup, "".join(PARTS.values()))


def test_every_file_that_is_named_is_there() -> None:
    names = ("src", "href", "data-example")
    named = [row[name] or "" for _, row in Tags(PARTS[INDEX]).rows for name in names if name in row]
    files = {name.removeprefix("page/") for name in named if name.startswith("page/")}
    files |= set(re.findall(r'(?:src|href)="page/(.*?)"', client().get("/docs").text))
    files |= {name for text in PARTS.values() for name in re.findall(r'from "\./(.*?)"', text)}
    assert files | {INDEX} == set(ASSETS)


def test_every_document_that_the_page_names_is_there() -> None:
    named = re.findall(r"<code>(docs/[\w-]+\.md)</code>", PARTS[INDEX])
    assert "docs/own-model.md" in named
    assert [path for path in named if not (BUNDLES.parents[1] / path).is_file()] == []


@pytest.mark.parametrize("path", [path for path in ASSETS if path.startswith("examples/")])
def test_an_example_is_a_request_that_its_model_reads_whole(path: str) -> None:
    """Its button names that model, and its tokens to two digits where it names them."""
    [button] = [row for _, row in Tags(PARTS[INDEX]).rows if row.get("data-example") == f"page/{path}"]
    request = ClassifyRequest.model_validate_json(ASSETS[path].content)
    assert button["data-model"] == request.model
    manifest = read_manifest(BUNDLES / str(request.model))
    encoder = TextEncoder.of_bundle(BUNDLES / str(request.model) / "tokenizer.json", manifest)
    [text] = json.loads(ASSETS[path].content)["inputs"]
    tokens = len(encoder.encode(text, None, truncate=False, param="inputs").token_ids)
    assert tokens <= manifest.max_tokens
    assert button.get("data-task") == (manifest.task if manifest.reads_tokens else None), "such a model opens with it"
    title = PARTS[INDEX].partition(f'data-example="page/{path}"')[2].partition(">")[2].partition("<")[0]
    named = re.search(r"([\d,]+) tokens", title)
    assert named is None or float(f"{tokens:.2g}") == int(named[1].replace(",", ""))
    reviews = re.match(r"(\d+) reviews", title)
    assert reviews is None or int(reviews[1]) == len(text.split("\n\n"))


def test_models_for_long_texts_have_an_example() -> None:
    longest = [path.name for path in BUNDLES.iterdir() if read_manifest(path).max_tokens > 4096]
    named = {row.get("data-model") for _, row in Tags(PARTS[INDEX]).rows}
    assert longest
    assert set(longest) <= named


def test_every_element_that_a_script_asks_for_is_in_the_page() -> None:
    ids = [row["id"] for _, row in Tags(PARTS[INDEX]).rows if "id" in row]
    assert len(ids) == len(set(ids))
    wanted = {name for text in PARTS.values() for name in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert wanted <= set(ids)


def test_the_page_names_no_operator_and_no_knob() -> None:
    """It is made of what `GET /v1/models` says."""
    names = {operator.key for operator in OPERATORS if operator.attention} | set(KNOBS)
    wrong = [
        (path, name)
        for path, text in PARTS.items()
        for name in names
        if re.search(rf"[\"'`.]{name}[\"'`]|\.{name}\b" if name.isalpha() else rf"\b{name}\b", text)
    ]
    assert not wrong
