"""`attenuator tune` where a small `keep` loses answers: the checkpoint is taught, by texts that do not judge."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from counting import LEARNT, counted, trained
from rich.console import Console

from attenuator.__main__ import main
from attenuator.bundle import REPORT, read_manifest
from attenuator.calibration.turns import Timing, in_turns
from attenuator.commands.calibrate import timing
from attenuator.errors import ExportError
from attenuator.export import trial
from attenuator.export.source import load as load_source
from attenuator.export.steps import Steps
from attenuator.runtime import load
from attenuator.tune import judging, pipeline, teaching
from attenuator.tune.pipeline import Run
from attenuator.tune.settings import TuneSettings
from attenuator.tuning.adapt import keep_command
from attenuator.tuning.adapt.keep import TaughtKeep
from attenuator.tuning.adapt.measuring import Figures
from attenuator.tuning.run import Outcome

FEWEST_TEXTS, MUCH = teaching.FEWEST_TEXTS, teaching.MUCH  # as they are before `small`
OPTIONS = ["--min-agreement", 0.97, "--minutes", 1, "--threads", 1, "--precision", "fp32"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a tiny model takes says nothing: what is judged later is faster. It learns from fewer texts, and faster."""
    turn = Timing(0.5, 2.0, 1.9, 2.1)
    monkeypatch.setattr(trial, "in_turns", lambda runs, budget_s, threads: [Timing(1.0, 1.0, 1.0, 1.0), turn])
    monkeypatch.setattr(timing, "in_turns", lambda runs, *_, **__: in_turns(runs, 0.0, max_rounds=1))
    ever_faster = lambda runs, *_, **__: [Timing(1.0, place, place, place) for place in range(1, len(runs) + 1)]  # noqa: E731
    monkeypatch.setattr(judging, "in_turns", ever_faster)
    monkeypatch.setattr(teaching, "FEWEST_TEXTS", LEARNT // 2)
    monkeypatch.setattr(keep_command, "LEARNING_RATE", 1e-3)
    monkeypatch.setattr(keep_command, "EPOCHS", 12.0)
    monkeypatch.setattr(keep_command, "BATCH_TEXTS", 16)
    monkeypatch.setattr(pipeline, "MUCH", 0.2)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("counting"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("".join(f"{text}\n" for text, _ in counted(2 * LEARNT, seed=1)))
    return path


def tune(*arguments: object) -> tuple[int, str, str]:
    """Runs `attenuator tune WORDS`; exit code, standard output, standard error."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = main(["tune", *map(str, arguments)])
    return code, output.getvalue(), errors.getvalue()


def test_teaching_is_gone_on_with_and_ends_in_one_bundle_of_both_weights(
    checkpoint: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "mine"
    command = [checkpoint, "--texts", texts, "--output", output, *OPTIONS]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    own = keep_command.teach_keep
    with monkeypatch.context() as patch:
        patch.setattr(keep_command, "teach_keep", interrupted)
        code, _, said = tune(*command)
    assert code == 130
    assert "and teaching up to " in said
    assert not output.exists()

    learnt: list[list[str]] = []

    def watched(teacher: Any, original: Any, read: Any, *further: Any, **options: Any) -> TaughtKeep:
        learnt.append([" ".join(map(str, text.token_ids)) for text in (*read.learnt, *read.held_out)])
        return own(teacher, original, read, *further, **options)

    monkeypatch.setattr(keep_command, "teach_keep", watched)
    code, printed, said = tune(*command)
    assert code == 0, said
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "nothing of it is left beside the bundle"
    manifest = read_manifest(output)
    assert manifest.taught is not None, said + printed
    assert f"by taught weights below keep {manifest.taught.below:g}" in printed
    assert "fp32, taught" in printed
    assert manifest.provenance.weights == load_source(str(checkpoint)).weights_sha256
    page = (output / REPORT).read_text()
    assert "texts that do not judge (" in page
    assert "Dashed is what was taught" in page
    assert 'class="curve fp32 taught"' in page

    [used] = learnt
    model = load(output)
    calibration = json.loads((output / "calibration.json").read_text())
    every = {text for text, _ in counted(2 * LEARNT, seed=1)}
    assert len(set(used)) == len(every) - calibration["texts"], "what judges does not teach"
    assert model.manifest.name == "mine"


def test_a_checkpoint_that_cannot_be_taught_is_tuned_without(
    checkpoint: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ExportError("it selects no tokens; --resume goes on")

    monkeypatch.setattr(keep_command, "taught_by", refused)
    output = tmp_path / "mine"
    code, printed, said = tune(checkpoint, "--texts", texts, "--output", output, *OPTIONS)
    assert code == 0
    assert read_manifest(output).taught is None
    assert "taught" not in printed
    page = (output / REPORT).read_text()
    assert "Dashed" not in page, "there is no such curve"
    for place in (said, page):
        assert "Teaching the checkpoint failed: it selects no tokens." in place, "tune has no --resume"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_teaching_lacks_is_said(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, name, spare = load_source(str(checkpoint)), str(checkpoint), teaching.FEWEST_TEXTS
    enough = teaching.lesson(source, name, spare, 0.001, 10)
    assert enough == teaching.Lesson(teaching.LEARNING_SHARE * 10)
    assert "fewer than" in teaching.lesson(source, name, spare - 1, 0.001, 10).why
    slow = teaching.lesson(source, name, spare, 10.0, 10)
    assert slow.minutes == 0
    asked = float(slow.why.rpartition(" ")[2])
    assert teaching.lesson(source, name, spare, 10.0, asked).minutes > 0, "what it asks for is enough"
    monkeypatch.setattr(teaching, "find_spec", lambda _: None)
    assert "attenuator[train]" in teaching.lesson(source, name, spare, 0.001, 10).why
    again = replace(source, taught=SimpleNamespace())  # type: ignore[arg-type]
    assert teaching.lesson(again, name, spare, 0.001, 10) == teaching.Lesson(0)


def test_where_teaching_does_not_fit_the_reason_is_that_of_the_texts_it_would_leave(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(str(checkpoint), TuneSettings(output=tmp_path / "mine", minutes=10), lambda _: None, Steps(Console()))
    every, each_s = 1500, 0.25  # 1,200 texts fit beside teaching, all of them without
    monkeypatch.setattr(teaching, "FEWEST_TEXTS", 700)
    plan = run.planned(every, 30.0, each_s)
    assert plan["count"] == every, "what teaching would have taken runs texts"
    assert "it takes --minutes" in plan["lesson"]["why"], "more texts would be no help"


def test_help_says_what_teaching_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert f"Teaching takes {FEWEST_TEXTS:,} that do not judge" in words
    assert "less than three times as fast" in words
    assert round(1 / MUCH) == 3


def test_a_sentence_says_what_was_gained() -> None:
    def figures(*agreement: float) -> tuple[Figures, ...]:
        return tuple(Figures(share, each, each, each, None) for share, each in zip((0.1, 0.5), agreement, strict=True))

    result = TaughtKeep(Outcome("finished", 7, 7, 1.0), "first", 0.5, figures(0.8, 0.95), figures(0.99, 0.9))
    said = teaching.sentence(result, 1234, 0.9)
    assert "from the 1,234 texts that do not judge (7 of 7 steps, all that were planned)" in said
    assert "held out bore keep 0.5 before and 0.1 afterwards, at 90 % agreement" in said
    assert teaching.share_borne(result, 0.9) == 0.1
    assert teaching.share_borne(result, 0.97) == 1, "at keep 0.5 there is too little, and above it the untaught answer"
    assert teaching.share_borne(replace(result, below=0.05), 0.9) is None, "the taught weights never answer"
    assert "gained nothing" in teaching.sentence(replace(result, below=0.05), 1234, 0.9)
