"""`attenuator tune` on a tiny checkpoint: the bundle, its default goal and report, what it goes on with and refuses."""

import io
import json
import random
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path

import pytest
from checkpoints import CHECKPOINTS, TEXTS, save

from attenuator.__main__ import main
from attenuator.bundle import PARTIAL, REPORT, read_manifest
from attenuator.calibration import read_calibration
from attenuator.calibration.goals import default_setting, estimate
from attenuator.calibration.turns import Timing, in_turns
from attenuator.commands.calibrate import timing
from attenuator.export import trial
from attenuator.export.source import load as load_source
from attenuator.runtime import load
from attenuator.tune import judging, pipeline
from attenuator.tune import texts as tune_texts
from attenuator.tune.result import CHOOSING_SHARE
from attenuator.tune.settings import TuneSettings
from attenuator.tune.texts import FEWEST, divided, fitting, read

WORDS = sorted({word for text in TEXTS for word in text.split()})
COUNT = 100
HOSTILE = "<script>alert(1)</script>"


def tune(*arguments: object) -> tuple[int, str, str]:
    """Runs `attenuator tune WORDS`; exit code, standard output, standard error."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(["tune", *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, output.getvalue(), errors.getvalue()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn each: what a tiny model takes says nothing."""
    turn = Timing(0.5, 2.0, 1.9, 2.1)
    monkeypatch.setattr(trial, "in_turns", lambda runs, budget_s, threads: [Timing(1.0, 1.0, 1.0, 1.0), turn])
    for module in (timing, judging):
        monkeypatch.setattr(module, "in_turns", lambda runs, *_, **__: in_turns(runs, 0.0, max_rounds=1))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(CHECKPOINTS["bert"], tmp_path_factory.mktemp("tune") / "bert")


@pytest.fixture(scope="module")
def data(checkpoint: Path) -> Path:
    draw = random.Random(5)
    labels = load_source(str(checkpoint)).labels
    path = checkpoint.parent / "texts.jsonl"
    rows = [
        {"text": " ".join([*draw.choices(WORDS, k=draw.randint(1, 25)), HOSTILE]), "label": draw.choice(labels)}
        for _ in range(COUNT)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0], {**rows[1]}]))
    return path


class Page(HTMLParser):
    """What a page holds: its tags with attributes, and its text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_an_interrupted_tuning_goes_on_and_ends_in_one_bundle_with_default_and_report(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bundles" / "mine"
    command = [checkpoint, "--texts", data, "--output", output, "--threads", 1, "--min-agreement", 0.9]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "timings", interrupted)
    code, _, said = tune(*command)
    assert code == 130
    assert "the same command goes on" in said
    assert "2 of 102 texts stand there twice, and count once" in said
    assert f"{COUNT} texts take about" in said
    assert not output.exists()

    code, _, said = tune(*command, "--precision", "fp32")  # other options
    assert code == 1
    assert "--restart" in said

    monkeypatch.setattr(pipeline, "timings", judging.timings)
    exported: list[str] = []
    own = pipeline.export
    monkeypatch.setattr(pipeline, "export", lambda *args, **options: exported.append("") or own(*args, **options))
    code, printed, said = tune(*command)
    assert (code, exported) == (0, []), "both bundles were there"
    assert "goes on with an interrupted tuning" in said
    assert [path.name for path in output.parent.iterdir()] == ["mine"]
    assert not (output / PARTIAL).exists()

    manifest = read_manifest(output)
    calibration = read_calibration(output, manifest)
    assert calibration is not None
    assert manifest.name == "mine"
    assert calibration.default_agreement == 0.9
    judges = COUNT - round(CHOOSING_SHARE * COUNT)
    assert calibration.texts == judges
    assert (calibration.reference is None) == (manifest.precision == "fp32")
    setting = default_setting(calibration, 20)
    row = setting.agreement[0]
    assert setting is calibration.settings[0] or estimate(row.successes, row.trials) >= 0.9
    load(output)  # as the service does, with its probe

    assert "exact: " in printed
    assert f"promise: {judges} texts show, at 97.5 % confidence, that at least" in printed
    assert "so few texts" not in printed, "60 can promise 0.9"
    assert "warning: all of these texts get the same answer, and" in printed, "this model has learned nothing"
    assert f"Serve it: attenuator serve {output}" in printed
    content = (output / REPORT).read_text()
    page = Page(content)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [of for _, of in page.tags if {"src", "href"} & of.keys()], "nothing from outside"
    assert printed.strip() in page.text
    assert f"of {judges}" in page.text


def test_int8_alone_can_be_asked_for_and_few_texts_promise_less(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    # What makes the sentence is tested where it is made.
    monkeypatch.setattr(pipeline, "cannot_pay", lambda *_: "No keep keeps them.")
    output = tmp_path / "rounded"
    code, printed, _ = tune(checkpoint, "--texts", data, "--output", output, "--precision", "int8", "--threads", 1)
    assert code == 0
    assert read_manifest(output).precision == "int8"
    assert "so few texts cannot promise 0.99" in printed
    assert "can promise 0.94 at most; give 613 or more" in printed
    assert "No keep keeps them." in Page((output / REPORT).read_text()).text


def test_without_texts_the_bundle_is_exact_and_a_sentence_says_what_it_takes(checkpoint: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(f"{WORDS[0]} {place}" for place in range(FEWEST - 1)))
    for words, has in (([], "no texts"), (["--texts", few], f"{FEWEST - 1} different texts")):
        output = tmp_path / "exact"
        code, printed, said = tune(checkpoint, "--output", output, *words)
        assert (code, printed) == (0, f"Serve it: attenuator serve {output}\n")
        assert f"'{output}' is exact: with {has}" in said
        assert "120 texts promise 0.95, 613 texts promise 0.99" in said
        assert [knob.default for knob in read_manifest(output).knobs] == [1.0]


def test_what_is_no_bundle_is_not_replaced_and_a_missing_file_is_named(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    code, _, said = tune(checkpoint, "--output", tmp_path)
    assert code == 1
    assert "is a folder that is not a bundle" in said
    code, _, said = tune(checkpoint, "--texts", tmp_path / "none.txt", "--output", tmp_path / "new")
    assert code == 1
    assert "none.txt cannot be read" in said
    assert tune(checkpoint, "--min-agreement", 1.5)[0] == 2


def test_a_name_and_a_place_that_cannot_be_are_refused_before_the_work(
    checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    words = [checkpoint, "--texts", data]
    for further, sentence in (
        (["--name", "a name", "--output", tmp_path / "new"], "name is 'a name', must be 1 to 128 letters, digits"),
        (["--output", file / "new"], "cannot be written: "),
    ):
        code, _, said = tune(*words, *further)
        assert (code, "texts take about" in said) == (1, False)
        assert sentence in said
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda place: pipeline.shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
    code, _, said = tune(*words, "--output", tmp_path / "full")
    assert (code, "texts take about" in said) == (1, False)
    assert "full cannot be written: 0 MiB are free there, tuning needs at least " in said
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_parts_share_no_text_and_are_the_same_in_every_run(
    checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    texts, items = read(data, TuneSettings(texts=data), load_source(str(checkpoint)), notes.append)
    parts = divided(texts, items, 80)
    choosing = {tuple(text.token_ids) for text in parts.choosing.encoded}
    judging = {tuple(text.token_ids) for text in parts.judging.encoded}
    assert (len(parts.choosing.encoded), len(parts.judging.encoded), len(parts.items)) == (32, 48, 48)
    assert len(choosing | judging) == 80, "no two of these texts are alike"
    assert parts.judging.truth is not None
    assert len(parts.judging.truth) == 48
    again = divided(texts, items, 80)
    assert [item.content for item in again.items] == [item.content for item in parts.items], "a draw is settled"
    monkeypatch.setattr(tune_texts, "MOST_TEXTS", 10)
    parts = divided(texts, items, 80)
    assert (len(parts.choosing.encoded), len(parts.items), len(parts.others)) == (10, 48, len(items) - 48)
    assert not {json.dumps(each.content) for each in parts.items} & {json.dumps(each.content) for each in parts.others}


@pytest.mark.parametrize(
    ("fixed_s", "each_s", "minutes", "count"),
    [(60, 0.1, 2, 600), (60, 0.1, 100, 1000), (600, 0.1, 2, 300), (60, 100, 2, FEWEST)],
)
def test_as_many_texts_as_fit_into_the_time(fixed_s: float, each_s: float, minutes: float, count: int) -> None:
    assert fitting(fixed_s, each_s, 1000, minutes) == count


def test_two_threads_are_expected_to_take_half_the_time(checkpoint: Path, data: Path) -> None:
    source = load_source(str(checkpoint))
    texts, _ = read(data, TuneSettings(texts=data), source, lambda sentence: None)
    fixed_s, each_s = tune_texts.seconds_of(source, texts, 1)
    assert fixed_s > 0
    assert tune_texts.seconds_of(source, texts, 2) == (fixed_s, pytest.approx(each_s / 2))
