"""A hook of mkdocs: the repository's own links work in the site.

Documents are written for the repository, where `docs/knobs.md` may link to `../export/README.md` and show
`../benchmarks/results/speed_up.svg`. In the site README.md is the front page, `docs/X` is `X`, and whatever else a page
links to is `source/X`, taken along with what that links to in turn.
"""

import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, ELSEWHERE, FRONT = "docs/", "source/", "README.md"
BEHIND_IN_SEARCH = (ELSEWHERE, "reference/")
# The search takes "a" and "do" for the beginnings of "Architecture" and "Docker".
AHEAD_IN_SEARCH = ("gpu.md",)
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=(?:#[^)\s]*)?\))")


def to_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path == FRONT:
        return "index.md"
    return path.removeprefix(DOCS) if path.startswith(DOCS) else ELSEWHERE + path


def to_repository(uri: str) -> str:
    """Where a page of the site is in the repository."""
    if uri == "index.md":
        return FRONT
    return uri.removeprefix(ELSEWHERE) if uri.startswith(ELSEWHERE) else DOCS + uri


def target_of(page: str, link: str) -> str | None:
    """The file of the repository that a link leads to; None where it leads elsewhere.

    Args:
        page: path of the page in the repository.
        link: as it is written there, without the anchor; that of a folder leads to its README.
    """
    if "://" in link:
        return None
    place = (ROOT / page).parent / link
    place = place / FRONT if place.is_dir() else place
    if not place.is_file() or not place.resolve().is_relative_to(ROOT):
        return None
    return place.resolve().relative_to(ROOT).as_posix()


def targets(page: str) -> set[str]:
    """The files of the repository that a page links to."""
    if not page.endswith(".md"):
        return set()
    links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    return {target for link in links if (target := target_of(page, link))}


def relative(uri: str, page: str) -> str:
    """A place in the site as seen from a page of it."""
    return PurePosixPath(*[".."] * page.count("/"), uri).as_posix()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the front page and what pages link to outside of docs/."""
    waiting = {FRONT, *(to_repository(file.src_uri) for file in files.documentation_pages())}
    known: set[str] = set()
    while waiting:
        path = waiting.pop()
        known.add(path)
        if not path.startswith(DOCS):
            files.append(File.generated(config, to_site(path), abs_src_path=str(ROOT / path)))
        waiting |= targets(path) - known
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links of the repository links of the site, and lets search find the pages for users first."""
    uri = page.file.src_uri
    if uri.startswith(BEHIND_IN_SEARCH):
        page.meta.setdefault("search", {"boost": 0.1})
    if uri in AHEAD_IN_SEARCH:
        page.meta.setdefault("search", {"boost": 2})

    def replaced(match: re.Match[str]) -> str:
        target = target_of(to_repository(uri), match[0])
        return relative(to_site(target), uri) if target else match[0]

    return LINK.sub(replaced, markdown)
