"""The page at `/`, on which one turns the knob: files of this folder, served as they are.

The page loads nothing from elsewhere, has no script or style inside its HTML, and asks the routes that everyone asks.
It is built in the browser from `GET /v1/models`, so that it knows no knob by name.
"""

import hashlib
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # Nothing is kept without asking: after an update of the service no page is put together from two versions.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page; its `etag` changes with the content."""

    content: bytes
    content_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """The page's files by their path below this folder, `index.html` and `examples/...` among them."""
    assets = {}
    for file in sorted(FOLDER.rglob("*")):
        if file.is_file() and file.suffix in TYPES:
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            assets[file.relative_to(FOLDER).as_posix()] = Asset(content, TYPES[file.suffix], etag)
    return assets


class Page:
    """Serves the page's files from memory."""

    def __init__(self, only: Container[str] | None = None) -> None:
        """Reads the files: all of them, or those of some paths."""
        self._assets = {path: asset for path, asset in read_assets().items() if only is None or path in only}

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return self._answer(INDEX, request)

    async def asset(self, request: Request) -> Response:
        """A file that the page asks for; HTTPException with 404 where there is none of that name."""
        return self._answer(request.path_params["path"], request)

    def _answer(self, path: str, request: Request) -> Response:
        """A file, or 304 where the caller's copy of it is current."""
        asset = self._assets.get(path)
        if asset is None:
            raise HTTPException(404)
        headers = {**HEADERS, "ETag": asset.etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if asset.etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers | {"Content-Type": asset.content_type})
