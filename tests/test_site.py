"""The documents as a site: every link leads somewhere, and no page loads anything from elsewhere."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attenuator.classify_request import ClassifyRequest
from attenuator.clients import AsyncClient, Client
from attenuator.commandline import COMMAND_SETTINGS

pytest.importorskip("mkdocs", reason="the site needs the extra 'docs'")
ROOT = Path(__file__).resolve().parent.parent
# What a browser fetches by itself, as against links that a reader follows.
FETCHED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]*""")
STYLE_FETCHES = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"']*""")

# What a reader types, and the page or section that answers.
ANSWERED_BY = {
    "install": "install.html",
    "how do I set an API key": "api-keys.html",
    "api key": "api-keys.html",
    "what happens to accuracy under load": "under-load.html",
    "accuracy under load": "under-load.html",
    "how do I run on a GPU": "gpu.html",
    "run on a gpu": "gpu.html",
    "gpu": "gpu.html",
    "what does keep do": "faq.html#what-does-keep-do",
    "keep": "knobs.html#keep",
    "kubernetes": "deploy-kubernetes.html",
    "run it in Docker": "deploy.html",
    "docker": "deploy.html",
    "what does error rate_limited mean": "errors.html",
    "unknown_model": "errors.html#over-http",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_has_its_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert pages
    assert [page for page in sorted(pages) if not (site / page).with_suffix(".html").is_file()] == []
    assert "accuracy knob" in (site / "index.html").read_text(encoding="utf-8")


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetched = [
        (path.name, fetch)
        for pattern, kind in ((FETCHED, "*.html"), (STYLE_FETCHES, "*.css"))
        for path in site.rglob(kind)
        for fetch in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert fetched == []


@pytest.mark.skipif(shutil.which("node") is None, reason="the site's search runs in node")
def test_search_finds_the_page_that_answers_first(site: Path) -> None:
    command = ["node", "tests/support/search.mjs", str(site), *ANSWERED_BY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert dict(zip(ANSWERED_BY, done.stdout.splitlines(), strict=True)) == ANSWERED_BY


def test_links_out_of_the_documents_lead_to_pages_and_pictures_of_the_site(site: Path) -> None:
    knobs = (site / "knobs.html").read_text(encoding="utf-8")
    for target in ("source/export/index.html", "source/benchmarks/models/knobs.html"):
        assert target in knobs
        assert (site / target).is_file()


def test_references_follow_from_the_code(site: Path) -> None:
    pages = {
        name: (site / f"reference/{name}.html").read_text(encoding="utf-8") for name in ("http", "settings", "python")
    }
    for path in COMMAND_SETTINGS:
        module, _, name = path.partition(":")
        fields = getattr(importlib.import_module(module), name).model_fields
        assert [field for field in fields if f"ATTENUATOR_{field.upper()}<" not in pages["settings"]] == []
    for shown in ("POST /v1/classify", "PUT /v1/models/{name}", "POST /v2/models/{model}/infer", "ClassifyRequest"):
        assert shown in pages["http"]
    assert [field for field in ClassifyRequest.model_fields if f"<code>{field}</code>" not in pages["http"]] == []
    for client in (Client, AsyncClient):
        methods = [name for name in dir(client) if not name.startswith("_") and callable(getattr(client, name))]
        assert "classify" in methods
        homes = (f".{client.__name__}", "client.BaseClient", "calls", "many")
        missing = [name for name in methods if not any(f'{home}.{name}"' in pages["python"] for home in homes)]
        assert missing == []
