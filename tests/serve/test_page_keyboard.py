"""The playground by keyboard alone, on a window of 360 pixels, and what a screen reader is told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import needs_browser
from playground import browser, dots, expect, visit, without_default
from service import Service

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
BUNDLE = Path(__file__).resolve().parents[2] / "examples/bundles/reviews"
# Notes each text that a live region shows, as a screen reader says it: also one that is set anew and is the same.
LISTEN = """
    window.announced = [];
    addEventListener("DOMContentLoaded", () => {
        for (const region of document.querySelectorAll("[role=status], [role=alert]")) {
            const note = () => region.offsetParent && announced.push([region.id, region.textContent]);
            new MutationObserver(note).observe(region, { childList: true, subtree: true, characterData: true });
        }
    });
"""
# The focused element, and how many pixels of its first 100 lie outside of the window or below the notice; its outline
# counts. A browser shows a tall field's line, not all of it.
FOCUSED = """() => {
    const [focused, notice] = [document.activeElement, document.getElementById("notice")];
    const floor = notice.hidden || notice.contains(focused) ? innerHeight : notice.getBoundingClientRect().top;
    const { top, bottom } = focused.getBoundingClientRect();
    const name = focused.id || focused.textContent.trim();
    return [name, Math.max(0, 5 - top, Math.min(bottom, top + 100) + 5 - floor)];
}"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service([without_default(BUNDLE, tmp_path_factory.mktemp("bundles"))])
    yield one
    assert one.stop() == 0, one.log()


@pytest.fixture
def narrow(shown: Service, visit: Callable[..., Any]) -> Any:
    """The page on a narrow and low window, with its first pictures drawn."""

    def before(page: Any) -> None:
        page.add_init_script(LISTEN)
        page.set_viewport_size({"width": 360, "height": 640})

    page = visit(shown, before=before)
    dots(page)
    return page


def walk(page: Any, name: str, key: str = "Tab") -> list[str]:
    """Goes on to an element by one key, and gives the names of those on the way; each of them is seen."""
    names = []
    for _ in range(40):
        page.keyboard.press(key)
        focused, outside = page.evaluate(FOCUSED)
        names.append(focused)
        assert outside == 0, f"{focused} is {outside} pixels out of sight"
        if focused == name:
            return names
    raise AssertionError(f"{name} is not among {names}")


def test_the_keyboard_reaches_everything_and_what_it_reaches_is_seen(narrow: Any) -> None:
    page = narrow
    reached = walk(page, "A short review")
    page.keyboard.press("Enter")
    expect(page.locator("#certainty-text")).to_contain_text("likely to be the exact answer")
    assert page.evaluate(FOCUSED) == ["A short review", 0], "also when the page above it has grown"
    reached += walk(page, "text")
    assert page.evaluate("document.activeElement.selectionEnd") == 0, "a text is read from its first word on"
    reached += walk(page, "copy-python")
    expected = [
        "handle",
        "knob-num_hashes",
        "goal-agreement",
        "A short review",
        "file",
        "text",
        "model",
        "explain-on",
        "goal-escalate",
        "copy-curl",
        "copy-python",
    ]
    assert [name for name in reached if name in expected] == expected
    page.keyboard.press("Enter")
    expect(page.locator("#copy-python")).to_have_text("Copied")
    expect(page.locator("#spoken")).to_have_text("Copied")


def test_a_notice_hides_nothing_that_is_focused_and_goes_with_escape(narrow: Any) -> None:
    page = narrow
    page.route("**/v1/classify", lambda route: route.fulfill(status=422, json={"error": "no min_agreement now"}))
    walk(page, "goal-agreement")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#notice-text")).to_contain_text("min_agreement")
    assert page.evaluate(FOCUSED) == ["goal-agreement", 0]
    walk(page, "explain-on")
    page.keyboard.press("Escape")
    expect(page.locator("#notice")).to_be_hidden()
    assert page.evaluate(FOCUSED) == ["explain-on", 0]


def test_the_focus_goes_back_to_where_it_was_when_a_notice_goes(narrow: Any) -> None:
    page = narrow
    walk(page, "handle")
    for leave in ("retry", "dismiss"):
        page.context.set_offline(True)
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#notice")).to_be_visible()  # its title is still there from the time before
        expect(page.locator("#notice-title")).to_have_text("No connection")
        walk(page, leave, "Shift+Tab")
        page.context.set_offline(False)
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_be_hidden()
        assert page.evaluate("document.activeElement.id") == "handle"


def test_a_screen_reader_is_told_each_thing_once(narrow: Any) -> None:
    page = narrow
    expect(page.locator("#spoken")).to_contain_text("Same as exact: 99.2 %. ")
    assert page.locator("output:not([aria-live=off])").count() == 0
    page.evaluate("announced.length = 0")
    walk(page, "goal-agreement")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#goal-reached")).to_contain_text("The service chose")
    chosen = page.locator("#goal-reached").inner_text().removeprefix("The service chose ").removesuffix(".")
    expect(page.locator("#spoken")).to_contain_text(f"{chosen}: ")
    expect(page.locator("#spoken")).to_contain_text("Same as exact: ")
    announced = page.evaluate("announced")
    assert len(announced) == len({tuple(row) for row in announced}), "nothing is said twice"
    assert len(announced) <= 3, "the goal, the first answer, what all seeds say"
    assert not [said for _, said in announced if "…" in said]
