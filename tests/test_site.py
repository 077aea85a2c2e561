"""The documents as a site: every link leads somewhere, and no page loads anything from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra 'docs'")
ROOT = Path(__file__).resolve().parent.parent
# What a browser fetches by itself, as against links that a reader follows.
FETCHED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]*""")
STYLE_FETCHES = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"']*""")


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


def test_links_out_of_the_documents_lead_to_pages_and_pictures_of_the_site(site: Path) -> None:
    knobs = (site / "knobs.html").read_text(encoding="utf-8")
    for target in ("source/export/index.html", "source/benchmarks/results/brownout.svg"):
        assert target in knobs
        assert (site / target).is_file()
