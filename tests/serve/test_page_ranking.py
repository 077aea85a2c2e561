"""The playground of a reranker: a query and documents in, the ranked list with its steps out, in a real browser."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import calibrations
import pytest
import tiny
from browser import needs_browser, overflow, violations
from playground import browser, copied_curl, expect, text, turn, visit
from service import Service

from attenuator.bundle import read_manifest

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
QUERY = "is the plot of the film good"
DOCUMENTS = ["the plot was very good", "a contract shall renew", "bad actor", "<b>law</b>", f"a film {'good ' * 90}"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server of a reranker with two knobs, and of a token classifier."""
    folder = tmp_path_factory.mktemp("bundles")
    tags = tiny.write(folder / "tags", "softmax", labels=("O", "B-GOOD"), pooling="none")
    one = Service([tiny.reranker(folder / "ranker"), tags])
    yield one
    assert one.stop() == 0, one.log()


def shown_rows(page: Any) -> list[str]:
    """Of each document in the shown list its score, its step and its exact place."""
    rows = page.locator("#ranks-rows tr").all()
    cells = [row.locator("th, td:not([hidden])").all_inner_texts() for row in rows]
    assert [row[0] for row in cells] == [str(place + 1) for place in range(len(cells))]
    return [" ".join(row[2:]) for row in cells]


def test_documents_are_ranked_and_the_best_of_them_again_exactly(shown: Service, visit: Callable[..., Any]) -> None:
    page = visit(shown)
    page.select_option("#model", "ranker")
    expect(page.locator("#answer-more")).to_have_text("Type a query, and documents, one a line.")
    page.fill("#text", "\n\n".join(DOCUMENTS))
    page.fill("#query", QUERY)
    expect(page.locator("#ranks-rows tr")).to_have_count(len(DOCUMENTS))
    assert text(page, "length").startswith("5 documents, ")
    for name in ("curve-figure", "compare-card", "once-card", "goal", "marks-figure", "ranks-step"):
        expect(page.locator(f"#{name}")).to_be_hidden()

    turn(page, "keep", "Home", "5 %")
    page.locator("#rescore").press("ArrowRight")
    page.locator("#rescore").press("ArrowRight")
    expect(page.locator("#ranks-note")).to_contain_text("Step 2: 2 documents at ")
    expect(page.locator("#agreement")).to_have_text(re.compile("yes|no|of"))
    answer = copied_curl(page)
    request = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    exact = shown.client.post("/v1/rerank", json=request | {"alpha": 0, "keep": 1}).json()["results"]
    exactly = {each["index"]: place + 1 for place, each in enumerate(exact)}
    assert shown_rows(page) == [
        f"{each['relevance_score']:.3f} {each['step']} {exactly[each['index']]}" for each in answer["results"]
    ]
    assert [each["step"] for each in answer["results"]] == [2, 2, 1, 1, 1]
    assert page.locator("#ranks b").count() == 0, "a document is never markup"
    page.click("#copy-python")
    expect(page.locator("#copy-python")).to_have_text("Copied")
    program = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    results = [(each["index"], each["relevance_score"], each["step"]) for each in answer["results"]]
    assert done.stdout.splitlines() == [" ".join(map(str, row)) for row in results]

    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 760})
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    assert overflow(page) <= 0

    page.fill("#text", "a film\n" * 1001)
    expect(page.locator("#notice-text")).to_have_text("documents has 1001 items, must have 1 to 1000.")
    page.uncheck("#rank-on")
    expect(page.locator("#answer")).to_have_text("relevance")
    expect(page.locator("#query")).to_be_hidden()
    page.select_option("#model", "tags")
    expect(page.locator("#rank-on")).to_be_hidden()


def test_where_no_small_share_keeps_the_answers_is_said_of_lists_too(visit: Callable[..., Any], tmp_path: Path) -> None:
    folder = tiny.reranker(tmp_path / "ranker")
    settings = [({"keep": share, "alpha": 0.0}, [count]) for share, count in ((1.0, 1000), (0.5, 980))]
    calibrations.write(folder, calibrations.calibration(read_manifest(folder).revision, [tiny.MAX_TOKENS], settings))
    one = Service([folder])
    page = visit(one)
    expect(page.locator("#curve-note")).to_have_text(
        re.compile("^ ?On these 1000 texts no keep that was measured, up to")
    )
    expect(page.locator("#curve-figure")).to_be_hidden()
    assert one.stop() == 0, one.log()
