"""The page at `/docs` in a real browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import needs_browser, overflow, violations
from playground import browser, expect, visit
from service import Service

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
BUNDLES = Path(__file__).resolve().parents[2] / "examples/bundles"


@pytest.fixture(scope="module")
def shown() -> Iterator[Service]:
    one = Service([BUNDLES / "reviews", BUNDLES / "reviews-mca"], "--api-key", "open-sesame", "--no-page")
    yield one
    assert one.stop() == 0, one.log()


def test_a_request_is_tried_in_the_reference(shown: Service, visit: Callable[..., Any]) -> None:
    page = visit(shown)  # which leads to the reference
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#try-status")).to_have_text("Status 401")
    page.fill("#try-key", "open-sesame")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#try-status")).to_have_text("Status 200")
    expect(page.locator("#try-answer")).to_contain_text('"label": "positive"')
    page.reload()  # the key stays in the tab, and with it come the models
    page.select_option("#try-model", "reviews-mca")
    assert '"model": "reviews-mca"' in page.locator("#try-body").input_value()
    assert '"keep": 0.05' in page.locator("#try-body").input_value()
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#try-answer")).to_contain_text('"model": "reviews-mca"')


def test_the_contents_lead_to_every_type_and_nothing_keeps_anyone_out(shown: Service, visit: Any) -> None:
    page = visit(shown)
    assert violations(page) == []
    page.locator(".contents").get_by_role("link", name="Prediction", exact=True).click()
    expect(page.locator("#Prediction table")).to_be_in_viewport()
    page.set_viewport_size({"width": 360, "height": 760})
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    assert overflow(page) <= 0
