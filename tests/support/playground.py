"""The playground as a visitor sees it, for tests: a page in a real browser, and what one does there."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import launched
from service import Service

expect = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install '.[test]'").expect
PATIENCE_MS = 60_000  # of waits: a machine may be busy with other tests
expect.set_options(timeout=PATIENCE_MS)
SEEDS = 16


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as one:
        yield one


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a server's page; fails at the end if the page threw an error or was refused something by its policy."""
    contexts, errors = [], []

    def run(service: Service, *, before: Callable[[Any], None] | None = None) -> Any:
        context = browser.new_context(viewport={"width": 1280, "height": 760}, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: "Security Policy" in line.text and errors.append(line.text))
        if before:
            before(page)
        page.goto(f"http://127.0.0.1:{service.port}/")
        return page

    yield run
    for context in contexts:
        context.close()
    assert errors == []


def without_default(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle at which requests that set nothing run at its knobs' defaults, not at a default goal."""
    copy = Path(shutil.copytree(bundle, folder / bundle.name))
    calibration = json.loads((copy / "calibration.json").read_text())
    calibration.pop("default_agreement")
    (copy / "calibration.json").write_text(json.dumps(calibration))
    return copy


def opened(visit: Callable[..., Any], service: Service, **options: Any) -> Any:
    """The page at the model of one knob, with a short text."""
    page = visit(service, **options)
    page.get_by_role("button", name="A short review").click()
    expect(page.locator("#model")).to_have_value("reviews")
    return page


def dots(page: Any, count: int = SEEDS) -> Any:
    """Waits for a picture of so many answers, and gives it."""
    circles = page.locator("#spread circle")
    expect(circles).to_have_count(count)
    return circles


def text(page: Any, name: str) -> str:
    return str(page.locator(f"#{name}").inner_text())


def turn(page: Any, knob: str, key: str, value: str) -> None:
    """Turns a knob by the keyboard, and waits until it shows a value and the answer to it."""
    page.locator(f"#knob-{knob}").press(key)
    expect(page.locator(f"#knob-{knob}")).to_have_attribute("aria-valuetext", value)
    page.wait_for_selector("#knob-card:not(.asking)")


def copied_curl(page: Any) -> dict[str, Any]:
    """The answer that the shown command gets."""
    page.click("#copy-curl")
    expect(page.locator("#copy-curl")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    return dict(json.loads(done.stdout))
