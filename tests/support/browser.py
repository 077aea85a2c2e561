"""A real browser for tests of pages: the machine's own Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


def violations(page: Any) -> list[str]:
    """What axe finds wrong with a page as it stands, one line for each element."""
    from axe_playwright_python.sync_playwright import Axe

    rows = Axe().run(page, options=WCAG).response["violations"]
    return [f"{row['id']}: {node['target']} {node['failureSummary']}" for row in rows for node in row["nodes"]]


def overflow(page: Any) -> int:
    """Pixels that the page is wider than its window; 0 where nothing has to be scrolled sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
