"""The playground of a token classifier: the text with its entities marked, in a real browser."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from browser import needs_browser, overflow, violations
from playground import browser, expect, text, turn, visit, without_default
from service import Service

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
BUNDLES = Path(__file__).resolve().parents[2] / "examples/bundles"
LABELS = ("O", "B-GOOD", "I-GOOD", "B-BAD", "I-BAD")
TEXT = "🎬 A good film, 中 not a bad one: 👋🏽 <img src=x onerror=alert(1)>\nthe plot is very good"
# The text as it stands there without its labels, and of each mark its first code point in it, its words and its label.
MARKED = """() => {
    let [written, marks] = ["", []];
    for (const node of document.getElementById("marks").childNodes) {
        const words = node.data ?? node.firstChild.data;
        if (node.tagName) marks.push([[...written].length, words, node.querySelector("small").childNodes[1].data]);
        written += words;
    }
    return [written, marks];
}"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server of a token classifier with a knob, one without, and a classifier of whole texts."""
    folder = tmp_path_factory.mktemp("bundles")
    plain = tiny.write(folder / "plain", "softmax", labels=LABELS, pooling="none", seed=3)
    tags = tiny.write(folder / "tags", "yoso", labels=LABELS, pooling="none", seed=7)
    one = Service([plain, tags, without_default(BUNDLES / "reviews", folder)])
    yield one
    assert one.stop() == 0, one.log()


def opened(visit: Callable[..., Any], service: Service, model: str, **options: Any) -> Any:
    """The page at a token classifier, with a text of its own."""
    page = visit(service, **options)
    page.select_option("#model", model)
    page.fill("#text", TEXT)
    expect(page.locator("#length")).to_contain_text("tokens")
    return page


def entities(service: Service, **fields: Any) -> list[dict[str, Any]]:
    answer = service.classify({"inputs": TEXT, "seed": 0, **fields}).json()
    return list(answer["predictions"][0]["entities"])


def places(found: list[dict[str, Any]]) -> list[list[Any]]:
    return [[each["start"], TEXT[each["start"] : each["end"]], each["label"]] for each in found]


def test_entities_are_marked_where_they_stand_and_a_text_is_never_markup(shown: Service, visit: Any) -> None:
    page = opened(visit, shown, "plain")
    found = entities(shown, model="plain")
    expect(page.locator("#marks mark")).to_have_count(len(found))
    assert page.evaluate(MARKED) == [TEXT, places(found)]
    assert page.locator("#marks img").count() == 0
    count = "1 entity" if len(found) == 1 else f"{len(found)} entities"
    assert (text(page, "answer"), text(page, "answer-more")) == (count, "the exact answer")
    expect(page.locator("#spoken")).to_contain_text(f"{count}: {found[0]['label']} ")
    for name in ("curve-figure", "curve-note", "bars", "settings", "compare-card", "once-card", "goal", "how"):
        expect(page.locator(f"#{name}")).to_be_hidden()
    assert text(page, "model-about").startswith("2 kinds of entities, ")


def test_what_differs_from_the_exact_entities_is_said(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown, "tags")
    exact = places(entities(shown, model="tags", num_hashes=0))
    turn(page, "num_hashes", "End", "exact")
    expect(page.locator("#answer-more")).to_have_text("the exact answer")
    assert page.evaluate(MARKED) == [TEXT, exact]
    turn(page, "num_hashes", "Home", "1")
    own = places(entities(shown, model="tags", num_hashes=1))
    more, less = [each for each in own if each not in exact], [each for each in exact if each not in own]
    assert (len(more), len(less)) == (24, 1), "random weights that were chosen for it"
    expect(page.locator("#marks .chip")).to_have_count(len(more))
    assert page.evaluate(MARKED) == [TEXT, own]
    assert text(page, "answer-more") == "24 not in the exact answer, 1 missing"
    assert text(page, "marks-note").startswith(f"Only in the exact answer: {less[0][2]} 🎬 A good film")
    assert text(page, "agreement-name") == "Same entities as exact"
    expect(page.locator("#agreement")).to_have_text("0 of 16")


def test_a_token_classifier_and_a_classifier_take_turns(shown: Service, visit: Callable[..., Any]) -> None:
    sent: list[dict[str, Any]] = []
    errors: list[str] = []
    listen = ("console", lambda line: line.type == "error" and errors.append(line.text))
    page = visit(shown, before=lambda page: page.on(*listen))
    page.on("request", lambda request: request.post_data and sent.append(json.loads(request.post_data)))
    for model in ("tags", "reviews", "plain", "reviews"):
        page.select_option("#model", model)
        page.fill("#text", f"{TEXT} {model}")
        finds = model != "reviews"
        expect(page.locator("#answer")).to_have_text(re.compile("entit" if finds else "^(posi|nega)tive$"))
        expect(page.locator("#marks")).to_be_visible(visible=finds)
        expect(page.locator("#compare-card")).to_be_visible(visible=not finds)
        expect(page.locator("#once-card")).to_be_visible(visible=not finds)
    assert {name for body in sent if body["model"] != "reviews" for name in body} == {
        *("model", "inputs", "num_hashes", "seed", "truncate")
    }
    expect(page.locator("#notice")).to_be_hidden()
    assert errors == []


def test_the_program_that_is_copied_prints_the_entities(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown, "plain")
    page.click("#copy-python")
    expect(page.locator("#copy-python")).to_have_text("Copied")
    program = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    found = entities(shown, model="plain")
    assert done.stdout.splitlines() == [
        " ".join(str(one[key]) for key in ("label", "start", "end", "word")) for one in found
    ]


def test_an_example_goes_to_a_model_of_its_kind(shown: Service, visit: Callable[..., Any]) -> None:
    """Its own model is not served here."""
    page = visit(shown)
    expect(page.locator("#model")).to_have_value("reviews")
    page.get_by_role("button", name="Personal data").click()
    expect(page.locator("#model")).to_have_value("plain")
    page.get_by_role("button", name="A contract").click()
    expect(page.locator("#model")).to_have_value("reviews")


def test_the_bundled_token_classifier_opens_with_its_example(visit: Callable[..., Any]) -> None:
    one = Service([BUNDLES / "pii"])
    page = visit(one)
    expect(page.locator("#marks mark").first).to_contain_text("Maria Santos")
    expect(page.locator("#spoken")).to_contain_text("entities: PERSON Maria Santos, ")
    assert violations(page) == []
    assert one.stop() == 0, one.log()


def test_marks_keep_nobody_out(shown: Service, visit: Callable[..., Any]) -> None:
    """By axe, in light and dark; a text without spaces is no wider than a narrow window, and a long one is scrolled."""
    page = opened(visit, shown, "tags")
    turn(page, "num_hashes", "Home", "1")
    expect(page.locator("#marks mark").first).to_be_visible()
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 760})
    page.emulate_media(color_scheme="dark")
    page.fill("#text", "good" * 300 + "\n the plot is bad" * 200)
    expect(page.locator("#marks mark").first).to_be_visible()
    assert violations(page) == []
    assert overflow(page) <= 0
    box, slider = (page.locator(name).bounding_box() for name in ("#marks", "#knob-num_hashes"))
    assert box["height"] <= 280
    assert slider["y"] + slider["height"] < 760
    assert page.evaluate("document.getElementById('marks').scrollHeight > 1000"), "scrolled, not cut"
