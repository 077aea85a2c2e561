"""The playground's curve, its goal and its comparison, as a visitor uses them in a real browser."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import calibrations
import pytest
from browser import needs_browser
from playground import browser, dots, expect, opened, text, turn, visit, without_default
from service import Service

from attenuator.bundle import read_manifest

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
BUNDLES = Path(__file__).resolve().parents[2] / "examples/bundles"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server of two bundled models: one with one knob, one with two."""
    folder = tmp_path_factory.mktemp("bundles")
    one = Service([without_default(BUNDLES / name, folder) for name in ("reviews", "reviews-mca")])
    yield one
    assert one.stop() == 0, one.log()


def test_a_goal_is_a_slider_beside_the_knob(shown: Service, visit: Callable[..., Any]) -> None:
    """The knob goes where the service is expected to put it before it answers, and turning it by hand ends the goal."""
    page = opened(visit, shown)
    dots(page)
    assert text(page, "goal-value") == "not set"
    sent = page.locator("#text").input_value()
    answer = shown.classify({"model": "reviews", "inputs": sent, "min_agreement": 0.97}).json()
    top = "document.querySelector('.stats').offsetTop"
    before = page.evaluate(top)
    page.locator("#goal-agreement").fill("97")
    expect(page.locator("#goal-reached")).to_have_text(
        f"The service chose hash tables {answer['knobs']['num_hashes']}."
    )
    assert page.evaluate(top) == before
    assert (text(page, "goal-value"), '"min_agreement":0.97,' in text(page, "code-curl")) == ("≥ 97 %", True)
    page.route("**/v1/classify", lambda route: None)  # never answered
    page.locator("#goal-agreement").fill("95.5")
    expected = shown.classify({"model": "reviews", "inputs": sent, "min_agreement": 0.955}).json()["knobs"]
    expect(page.locator("#knob-num_hashes")).to_have_attribute("aria-valuetext", str(expected["num_hashes"]))
    page.unroute("**/v1/classify")
    turn(page, "num_hashes", "End", "exact")
    expect(page.locator("#goal-value")).to_have_text("not set")
    assert "min_agreement" not in text(page, "code-curl")


def test_the_page_opens_where_requests_run_that_set_nothing(visit: Callable[..., Any]) -> None:
    one = Service([BUNDLES / "reviews-mca"])
    page = visit(one)
    expect(page.locator("#length")).to_contain_text("tokens")
    answer = one.classify({"inputs": page.locator("#text").input_value()}).json()
    assert (answer["chosen_by"], answer["knobs"]) == ("default", {"keep": 0.05, "alpha": 0.0})
    assert '"keep":0.05,"alpha":0,' in text(page, "code-curl")
    expect(page.locator("#handle")).to_have_attribute("aria-valuetext", re.compile("^2.4 × as fast, 99.6 % the same: "))
    assert text(page, "curve-note").strip().endswith("Requests that set nothing run where 99 % stayed the same.")
    assert one.stop() == 0, one.log()


def test_a_model_that_loses_answers_at_every_share_is_shown_with_what_to_do(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """The sentence that `calibrate` and `inspect` print."""
    folder = Path(shutil.copytree(BUNDLES / "reviews-mca", tmp_path / "reviews-mca"))
    settings = [({"keep": share, "alpha": 0.0}, [count]) for share, count in ((1.0, 1000), (0.5, 980), (0.1, 900))]
    calibrations.write(folder, calibrations.calibration(read_manifest(folder).revision, [4096], settings))
    one = Service([folder])
    sentence = (
        "On these 1000 texts no keep that was measured, up to 0.5, keeps 99 % of the exact answers: teach the "
        "checkpoint with `attenuator adapt --keep`, unless it is taught already, or use int8."
    )
    [listed] = one.client.get("/v1/models").json()["models"]
    assert listed["calibration"]["warning"] == sentence
    expect(visit(one).locator("#curve-note strong")).to_have_text(sentence.replace("`", ""))
    assert one.stop() == 0, one.log()


def test_the_exact_value_of_a_rounded_bundle_shows_what_was_measured_there(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """Its int8 numbers change answers, whatever the knob."""
    folder = without_default(BUNDLES / "reviews", tmp_path)
    calibration = json.loads((folder / "calibration.json").read_text())
    exact, other, *_ = calibration["settings"]
    exact["agreement"] = other["agreement"]
    (folder / "calibration.json").write_text(json.dumps(calibration | {"reference": "0" * 64}))
    one = Service([folder])
    page = opened(visit, one)
    dots(page)
    turn(page, "num_hashes", "End", "exact")
    measured = one.client.get("/v1/models").json()["models"][0]["calibration"]["settings"]
    assert measured[0]["agreement"] == measured[1]["agreement"]
    share = text(page, "agreement")
    assert re.fullmatch(r"9\d(\.\d+)? %", share)
    expect(page.locator("#handle")).to_have_attribute("aria-valuetext", re.compile(f"^exact, {share} the same: "))
    assert one.stop() == 0, one.log()


def test_nothing_is_blank_and_nothing_moves_while_the_handle_is_dragged(shown: Service, visit: Any) -> None:
    """Before an answer there is what calibration says of the setting that the handle shows."""
    page = opened(visit, shown)
    dots(page)
    page.route("**/v1/classify", lambda route: None)  # never answered
    cards = "[...document.querySelectorAll('.card, #spread, .stats > div')].map((one) => one.offsetTop)"
    before = page.evaluate(f"[{cards}, scrollY]")
    box, handle = page.locator("#curve-box").bounding_box(), page.locator("#handle").bounding_box()
    page.mouse.move(handle["x"] + 15, handle["y"] + 15)
    page.mouse.down()
    [listed, _] = shown.client.get("/v1/models").json()["models"]
    at_4 = listed["calibration"]["settings"][-1]
    page.mouse.move(box["x"], handle["y"], steps=9)
    expect(page.locator("#knob-num_hashes")).to_have_attribute("aria-valuetext", str(at_4["knobs"]["num_hashes"]))
    assert text(page, "answer") in ("negative", "positive")
    same = f"{math.floor(1000 * at_4['agreement'][0]['value']) / 10:g} %"
    assert text(page, "agreement") == same
    assert text(page, "time-share") == f"{1 / at_4['time'][0]:.1f} × as fast as exact, expected"
    assert re.fullmatch(r"≈ [\d.]+ m?s", text(page, "time"))
    assert page.locator("#handle").get_attribute("aria-valuetext") == f"1.2 × as fast, {same} the same: hash tables 4"
    assert "…" not in page.locator("#knob-card").inner_text()
    assert page.evaluate(f"[{cards}, scrollY]") == before
    page.mouse.up()


def test_no_text_waits_for_nothing(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown)
    dots(page)
    page.fill("#text", "")
    expect(page.locator("#answer-more")).to_have_text("Type a text, or choose an example.")
    assert (text(page, "answer"), text(page, "time-exact-text")) == ("–", "–")
    assert "…" not in page.locator("#knob-card").inner_text()


def test_what_of_a_text_is_not_sent_is_said(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown)
    page.evaluate("document.getElementById('text').value = 'a word '.repeat(500_000)")
    page.locator("#text").press("End")
    page.keyboard.type("x")
    expect(page.locator("#length")).to_contain_text("Only the first 3,000,000 of 3,500,001 characters are sent")


def test_labels_that_differ_come_first_and_all_that_apply_are_there(shown: Service, visit: Callable[..., Any]) -> None:
    page = visit(shown)
    code = """async ([own, exact]) => {
        const { drawLabels } = await import("/page/labels.js");
        const labels = [..."abcdefghijkl"];
        const answer = (applied) => ({
            labels: applied, decision: applied.join(), scores: new Map(labels.map((one, i) => [one, 1 - i / 20])),
        });
        drawLabels({ subject: { exact: answer(exact) }, model: { task: "multi_label", labels } }, answer(own), false);
        return [...document.querySelectorAll("#compare-rows th")].map((row) => row.textContent);
    }"""
    shown_labels = page.evaluate(code, [list("abcdefgh"), list("abcdefgk")])
    assert shown_labels == ["hdiffers", "kdiffers", *"abcdefg"]
    assert page.evaluate(code, [["a"], ["a"]]) == list("abcdef")
