"""The playground as a visitor uses it: in a real browser, on the bundled models."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import needs_browser, overflow, violations
from playground import SEEDS, browser, copied_curl, dots, expect, opened, text, turn, visit, without_default
from service import Service

from attenuator.ops import KNOBS
from attenuator.ops.knobs import accuracy_rank, check_knob

__all__ = ["browser", "visit"]  # fixtures
pytestmark = needs_browser
BUNDLES = Path(__file__).resolve().parents[2] / "examples/bundles"
DOUBTFUL = "The plot was dull, but the cast was wonderful."
# A slower network, and requests counted in the page itself: the browser may report one's end after the next one began.
COUNT_REQUESTS = """
    const inFlight = (window.inFlight = { now: 0, most: 0, all: 0 });
    const real = window.fetch;
    window.fetch = (...request) => {
        inFlight.now += 1;
        inFlight.all += 1;
        inFlight.most = Math.max(inFlight.most, inFlight.now);
        const late = (answer) => new Promise((resolve) => setTimeout(() => resolve(answer), 40));
        return real(...request).then(late).finally(() => (inFlight.now -= 1));
    };
"""
OPEN, SLOW, LIMITED = "open-key-3141", "slow-key-2718", "limited-key-1414"
KEYS: list[dict[str, Any]] = [
    {"name": "open", "key": OPEN},
    {"name": "slow", "key": SLOW, "requests_per_s": 0.5, "burst": 2},
    {"name": "limited", "key": LIMITED, "ceilings": {"num_hashes": 16}},
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server of two bundled models: one with one knob, one with two."""
    folder = tmp_path_factory.mktemp("bundles")
    one = Service([without_default(BUNDLES / name, folder) for name in ("reviews", "reviews-mca")])
    yield one
    assert one.stop() == 0, one.log()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    bundle = without_default(BUNDLES / "reviews", tmp_path_factory.mktemp("bundles"))
    one = Service([bundle], "--api-keys", json.dumps(KEYS), "--max-cost", "0.15")
    yield one
    assert one.stop() == 0, one.log()


def test_the_picture_shows_what_the_service_answers_from_the_cheapest_value_to_the_exact_one(
    shown: Service, visit: Callable[..., Any]
) -> None:
    page = opened(visit, shown)
    circles = dots(page)
    expect(page.locator("#spread .exact-line")).to_have_count(1)
    sent = page.locator("#text").input_value()
    request = {"model": "reviews", "inputs": sent, "num_hashes": 64, "seed": 0}
    [own] = shown.classify(request).json()["predictions"]
    [exact] = shown.classify(request | {"num_hashes": 0}).json()["predictions"]
    assert (text(page, "answer"), text(page, "answer-score")) == (own["label"], f"{own['score']:.3f}")
    assert [*page.locator("#compare-rows td.exact").all_inner_texts()][0] == f"{exact['score']:.3f}"
    [listed, _] = shown.client.get("/v1/models").json()["models"]
    bucket, at_64 = listed["calibration"]["buckets"][0], listed["calibration"]["settings"][1]
    assert (at_64["knobs"], bucket["texts"]) == ({"num_hashes": 64}, 2871)
    assert text(page, "agreement") == "99.2 %", "of the texts that were measured, at the value or at the next lower one"
    assert text(page, "agreement-more") == f"of 2,871 other texts of {bucket['low']:,} to {bucket['high']:,} tokens"
    assert circles.and_(page.locator(".differs")).count() == 0
    assert re.fullmatch(r"([\d.]+ × )?(as fast as|slower than) exact", text(page, "time-share"))
    assert page.locator("#curve .measured").count() == len(bucket["settings"])

    turn(page, "num_hashes", "Home", "1")
    dots(page)
    request |= {"num_hashes": 1}
    labels = [shown.classify(request | {"seed": seed}).json()["predictions"][0]["label"] for seed in range(SEEDS)]
    [exact] = shown.classify(request | {"num_hashes": 0}).json()["predictions"]
    assert page.locator("#spread .differs").count() == SEEDS - labels.count(exact["label"])
    assert text(page, "agreement") == "not known", "calibration measured no less than 4"
    assert '"num_hashes":1,' in text(page, "code-curl")
    sent_again: list[str] = []
    page.on("request", lambda request: sent_again.append(request.url))
    turn(page, "num_hashes", "End", "exact")
    assert (text(page, "agreement"), text(page, "time-share")) == ("exact", "exact")
    assert '"num_hashes":0,' in text(page, "code-curl")
    expect(page.locator("#spoken")).to_contain_text("hash tables exact: ")
    assert sent_again == [], "the exact answer is known"


def test_a_model_of_two_knobs_has_two_sliders(shown: Service, visit: Callable[..., Any]) -> None:
    page = visit(shown)
    expect(page.locator("#model")).to_have_value("reviews-mca")  # it gains most at 99 %
    expect(page.locator("#sliders input")).to_have_count(2)
    turn(page, "alpha", "End", "exact")  # nothing samples any more
    dots(page, 6)
    turn(page, "keep", "End", "exact")
    assert text(page, "agreement") == "exact"
    turn(page, "keep", "Home", "5 %")
    assert '"keep":0.05,"alpha":0,' in text(page, "code-curl")
    handle, (keep, alpha) = page.locator("#handle"), [page.locator(f"#knob-{name}") for name in ("keep", "alpha")]
    handle.press("End")
    for slider in (keep, alpha):
        expect(slider).to_have_attribute("aria-valuetext", "exact")
    handle.press("ArrowLeft")
    expect(keep).not_to_have_attribute("aria-valuetext", "exact")
    expect(alpha).to_have_attribute("aria-valuetext", "exact")
    handle.press("Home")
    expect(page.locator("#code-curl")).to_contain_text('"keep":0.05,"alpha":1,')


def test_every_knobs_slider_goes_from_its_cheapest_value_to_its_exact_one(
    shown: Service, visit: Callable[..., Any]
) -> None:
    page = visit(shown)
    for knob in KNOBS.values():
        info = {name: getattr(knob, name) for name in ("name", "dtype", "low", "high", "exact", "accuracy")}
        stops = page.evaluate("async (info) => new (await import('/page/knobs.js')).Knob(info).stops", info)
        assert len(stops) > 10
        assert [check_knob(knob, value) for value in stops] == stops, "each is a value of the knob"
        ranks = [accuracy_rank(knob, value) for value in stops]
        assert ranks == sorted(set(ranks))
        assert (stops[-1], {knob.low, knob.high} - set(stops)) == (knob.exact, set())


def test_the_commands_that_are_copied_give_this_answer(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown)
    dots(page)
    page.fill("#text", "It's \"fine\" – 100 % \\ 'n' $HOME `id` 好 😀\nsecond line")
    expect(page.locator("#length")).to_contain_text("tokens")
    dots(page)
    copied = {}
    for kind in ("curl", "python"):
        page.click(f"#copy-{kind}")
        expect(page.locator(f"#copy-{kind}")).to_have_text("Copied")
        copied[kind] = page.evaluate("navigator.clipboard.readText()")
    answer = json.loads(subprocess.run(["bash", "-c", copied["curl"]], capture_output=True, check=True).stdout)
    [prediction] = answer["predictions"]
    assert (prediction["label"], f"{prediction['score']:.3f}") == (text(page, "answer"), text(page, "answer-score"))
    python = subprocess.run([sys.executable, "-c", copied["python"]], capture_output=True, check=True, text=True)
    assert python.stdout == f"{prediction['label']} {prediction['score']}\n"


def test_how_sure_an_answer_is_stands_beside_it_while_that_is_asked(shown: Service, visit: Callable[..., Any]) -> None:
    page = opened(visit, shown)
    page.fill("#text", DOUBTFUL)
    turn(page, "num_hashes", "Home", "1")
    expect(page.locator("#certainty-text")).to_contain_text(
        "Not known: this setting is less accurate than all that were measured for this model."
    )
    page.locator("#knob-num_hashes").press("PageUp")
    expect(page.locator("#certainty-text")).to_contain_text("likely to be the exact answer")
    answer = copied_curl(page)
    [prediction] = answer["predictions"]
    assert page.locator("#knob-num_hashes").get_attribute("aria-valuetext") == str(answer["knobs"]["num_hashes"])
    likely, error = page.evaluate(
        "async ([chance, error]) => { const { percent, score } = await import('/page/numbers.js');"
        " return [percent(chance), score(error)]; }",
        [prediction["agreement_probability"], prediction["standard_error"]],
    )
    assert text(page, "certainty-text") == (
        f"{likely} likely to be the exact answer. Another seed would typically move its score by ± {error}."
    )
    turn(page, "num_hashes", "End", "exact")
    assert text(page, "certainty-text") == "It is the exact answer."
    bodies: list[str] = []
    page.on("request", lambda request: bodies.append(request.post_data or ""))
    page.uncheck("#explain-on")
    expect(page.locator("#code-curl")).not_to_contain_text("explain")
    page.locator("#knob-num_hashes").press("ArrowLeft")
    dots(page)
    assert text(page, "certainty-text") == ""
    assert len(bodies) >= SEEDS - 1
    assert not [body for body in bodies if "explain" in body]
    page.select_option("#model", "reviews-mca")
    page.check("#explain-on")
    turn(page, "alpha", "End", "exact")
    expect(page.locator("#certainty-text")).to_contain_text("Nothing in it is drawn at random")


def test_a_text_runs_again_until_its_own_answer_is_sure(shown: Service, visit: Callable[..., Any]) -> None:
    request = {"model": "reviews", "inputs": DOUBTFUL, "min_agreement": 0.95, "escalate": True, "seed": 0}
    answer = shown.classify(request).json()
    [own] = answer["predictions"]
    assert (answer["steps"] > 1, own["agreement_probability"] >= 0.95) == (True, True)
    page = opened(visit, shown)
    page.fill("#text", DOUBTFUL)
    page.check("#goal-escalate")
    reached = f"{answer['steps']} runs, the last at hash tables {answer['knobs']['num_hashes'] or 'exact'}, "
    expect(page.locator("#goal-reached")).to_contain_text(reached)
    assert (text(page, "answer"), text(page, "answer-score")) == (own["label"], f"{own['score']:.3f}")
    copied = copied_curl(page)
    assert (copied["steps"], copied["predictions"][0]["score"]) == (answer["steps"], own["score"])
    page.uncheck("#goal-escalate")
    expect(page.locator("#goal-reached")).to_contain_text("The service chose")


def test_a_long_text_is_read_from_a_file_cut_and_copied_whole(
    shown: Service, visit: Callable[..., Any], tmp_path: Path
) -> None:
    page = opened(visit, shown)
    dots(page)
    file = tmp_path / "long.txt"
    file.write_text("a film that does not end, " * 900)
    dropped = page.evaluate_handle(
        "() => { const data = new DataTransfer(); data.items.add(new File(['a good film'], 'a.txt')); return data; }"
    )
    page.dispatch_event("#ask-card", "drop", {"dataTransfer": dropped})
    expect(page.locator("#text")).to_have_value("a good film")
    page.set_input_files("#file", file)
    expect(page.locator("#length")).to_contain_text("the rest is cut off")
    assert "more characters" in text(page, "code-curl")
    page.click("#copy-curl")
    expect(page.locator("#copy-curl")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout)
    assert answer["tokens"] == [4096]


def test_a_share_short_of_all_is_not_said_to_be_all(shown: Service, visit: Callable[..., Any]) -> None:
    shares = [0, 0.0001, 0.1, 0.945, 0.99, 0.9951, 0.9964, 0.99999, 1, 1.5]
    said = visit(shown).evaluate("async (all) => all.map((await import('/page/numbers.js')).percent)", shares)
    assert said == ["0 %", "0.01 %", "10 %", "95 %", "99 %", "99.5 %", "99.6 %", "99.9 %", "100 %", "150 %"]


def test_dragging_never_has_more_than_one_request_in_flight_for_each_purpose(
    shown: Service, visit: Callable[..., Any]
) -> None:
    page = opened(visit, shown, before=lambda page: page.add_init_script(COUNT_REQUESTS))
    dots(page)
    page.evaluate("() => { inFlight.most = inFlight.all = 0; }")
    box = page.locator("#knob-num_hashes").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, middle, steps=50)
    page.mouse.up()
    dots(page)
    value = page.locator("#knob-num_hashes").get_attribute("aria-valuetext")
    assert f'"num_hashes":{value},' in text(page, "code-curl"), "the last position wins"
    most, every = page.evaluate("() => [inFlight.most, inFlight.all]")
    assert 1 <= most <= 2, "one for the knob, one for the seeds of where it rested"
    assert every <= 50 + 2 * SEEDS


def test_a_key_is_asked_for_kept_in_the_tab_and_forgotten(keyed: Service, visit: Callable[..., Any]) -> None:
    page = visit(keyed)
    page.wait_for_selector("#key-form:not([hidden])")
    assert violations(page) == []
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#notice-text")).to_contain_text("not one of")
    page.fill("#key", OPEN)
    page.keyboard.press("Enter")
    dots(page)
    assert page.evaluate("document.activeElement.id") == "playground", "not lost with the form"
    expect(page.locator("#certainty-text")).to_contain_text("The service does not say: the predicted cost is")
    assert OPEN not in page.content()
    assert "Authorization: Bearer $ATTENUATOR_API_KEY" in text(page, "code-curl")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    dots(page)
    page.click("#forget")
    page.wait_for_selector("#key-form:not([hidden])")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_busy_service_is_waited_for(keyed: Service, visit: Callable[..., Any]) -> None:
    page = visit(keyed, before=lambda page: page.add_init_script(f"sessionStorage['attenuator-api-key'] = '{SLOW}'"))
    expect(page.locator("#answer")).not_to_have_text("…")  # models and one answer
    page.locator("#knob-num_hashes").press("Home")
    page.wait_for_selector("#notice.busy:not([hidden])")
    assert "'slow' may make 0.5 requests per second" in text(page, "notice-text")
    assert re.fullmatch(r"Asks again( in \d s\.|…)", text(page, "notice-wait"))
    page.wait_for_selector("#notice", state="hidden")
    assert '"num_hashes":1,' in text(page, "code-curl")


def test_a_refused_setting_and_a_refused_exact_answer_are_said(keyed: Service, visit: Callable[..., Any]) -> None:
    page = visit(keyed, before=lambda page: page.add_init_script(f"sessionStorage['attenuator-api-key'] = '{LIMITED}'"))
    page.wait_for_selector("#notice:not([hidden])")
    assert re.match(r"num_hashes is \d+, must be at most 16 .*\.", text(page, "notice-text"))
    page.locator("#knob-num_hashes").press("Home")
    dots(page)
    expect(page.locator("#time-exact-text")).to_have_text("not allowed here")
    assert not page.locator("#notice").is_visible()
    assert page.locator("#spread .exact-line").count() == 0


def test_the_time_of_the_exact_answer_is_counted_against_the_expected_one(shown: Service, visit: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route) if json.loads(route.request.post_data).get("num_hashes") == 0 else route.continue_()

    page = visit(shown, before=lambda page: page.route("**/v1/classify", hold))
    expect(page.locator("#time-exact-text")).to_have_text(re.compile("ms$"))
    page.get_by_role("button", name="A short review").click()
    expect(page.locator("#time-exact-text")).to_have_text(re.compile(r"^[\d.]+ s, longer than the expected [\d.]+ s$"))
    page.fill("#text", DOUBTFUL)
    expect(page.locator("#time-exact-text")).to_have_text(re.compile(r"^[\d.]+ s, behind another exact run$"))


def test_before_a_text_is_counted_the_calibration_of_texts_about_as_long_is_shown(shown: Service, visit: Any) -> None:
    page = opened(visit, shown)
    dots(page)
    page.route("**/v1/classify", lambda route: None)  # never answered
    page.locator("#text").fill("word " * 450)
    expect(page.locator("#answer")).to_have_text("…")
    lengths = re.search(r"texts of ([\d,]+) to ([\d,]+) tokens", text(page, "curve-note"))
    assert lengths is not None
    assert int(lengths[1]) <= 450 <= int(lengths[2])
    assert int(lengths[1]) > 1


def test_loading_and_a_service_that_is_gone_are_said(shown: Service, visit: Callable[..., Any]) -> None:
    held: list[Any] = []
    page = visit(shown, before=lambda page: page.route("**/v1/models", lambda route: held.append(route)))
    expect(page.locator("#loading")).to_be_visible()
    expect(page.locator("#playground")).to_be_hidden()
    held[0].continue_()
    expect(page.locator("#answer")).to_have_text("positive")
    expect(page.locator("#loading")).to_be_hidden()
    page.route("**/page/examples/*", lambda route: route.abort())
    page.get_by_role("button", name="A short review").click()
    expect(page.locator("#notice-title")).to_have_text("No connection")
    page.context.set_offline(True)
    page.locator("#knob-keep").press("PageUp")
    expect(page.locator("#notice-title")).to_have_text("No connection")
    page.context.set_offline(False)
    page.click("#retry")
    page.wait_for_selector("#knob-card:not(.asking)")
    expect(page.locator("#notice")).to_be_hidden()


def test_the_javascript_client_runs_in_a_browser_too(shown: Service, visit: Callable[..., Any]) -> None:
    module = BUNDLES.parents[1] / "clients/js/attenuator.js"

    def give(page: Any) -> None:
        page.route("**/client.js", lambda route: route.fulfill(path=module, content_type="text/javascript"))

    code = """async (texts) => {
        const { AttenuatorError, Client } = await import("/client.js");
        const [client, labels] = [new Client(location.origin), []];
        for await (const answer of client.classifyMany(texts, { model: "reviews", seed: 0 }))
            labels.push(answer.predictions[0].label);
        const error = await client.classify(texts, { model: "reviews", seed: -1 }).catch((one) => one);
        return [labels, error instanceof AttenuatorError, error.code, error.field];
    }"""
    texts = ["A film of rare warmth.", "Two hours I want back."]
    answers = visit(shown, before=give).evaluate(code, texts)
    assert answers == [["positive", "negative"], True, "invalid_request", "seed"]


def test_nothing_keeps_anyone_out(shown: Service, visit: Callable[..., Any]) -> None:
    """By axe, in light and dark; on a narrow screen the knob and its picture are seen without scrolling."""
    page = opened(visit, shown)
    dots(page)
    page.click("summary")
    assert violations(page) == []
    page.set_viewport_size({"width": 360, "height": 760})
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    assert overflow(page) <= 0
    for name in ("curve", "knob-num_hashes"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["y"] + box["height"] / 2 < 760
