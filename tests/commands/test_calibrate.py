"""The command `calibrate` on small bundles with the real operators: what it writes, resumes and refuses."""

import functools
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import tiny

from attenuator.__main__ import main
from attenuator.bundle import CALIBRATION, MODEL, PARTIAL, PLOT, read_manifest
from attenuator.calibration import Calibration, read_calibration
from attenuator.calibration.turns import Timing
from attenuator.commands.calibrate import pipeline, timing
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.commands.calibrate.settings import CalibrateSettings
from attenuator.commands.calibrate.texts import correct, read_texts
from attenuator.commands.cost import TimeModel
from attenuator.errors import InvalidRequest
from attenuator.runtime import Model, Row, load
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

TEXTS = 70


GOAL = ["--min-agreement", "0.8"]


def calibrate(*arguments: str | Path) -> tuple[int, str, str]:
    """Runs `attenuator calibrate WORDS`; exit code, standard output, standard error."""
    goal = [] if "--min-agreement" in arguments else GOAL
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(["calibrate", *map(str, arguments), *goal])
        except SystemExit as ended:
            code = int(ended.code or 0)
    said = [line for line in errors.getvalue().splitlines(keepends=True) if "the machine was busy" not in line]
    return code, output.getvalue(), "".join(said)


def lines(labels: list[str]) -> list[dict[str, Any]]:
    draw = random.Random(5)
    return [
        {"text": " ".join(draw.choices(tiny.WORDS, k=draw.randint(3, 50))), "label": draw.choice(labels)}
        for _ in range(TEXTS)
    ]


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def fresh(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one knob, for short texts."""
    folder = tmp_path_factory.mktemp("calibrate") / "bundle"
    shutil.copytree(bundles["yoso"], folder)
    tiny.sign(folder, max_tokens=64)
    return folder


@pytest.fixture(scope="module")
def model(fresh: Path) -> Model:
    return load(fresh, check=False)


@pytest.fixture(scope="module")
def data(fresh: Path) -> Path:
    return written(fresh.parent / "held-out.jsonl", lines(read_manifest(fresh).labels))


@pytest.fixture(scope="module")
def calibrated(fresh: Path, data: Path) -> Path:
    """The bundle after a calibration."""
    folder = fresh.parent / "calibrated"
    shutil.copytree(fresh, folder)
    code, output, errors = calibrate(folder, "--data", data)
    assert (code, errors) == (0, "")
    assert "the cheapest num_hashes for a min_agreement" in output
    assert "Requests that set nothing run at what is estimated to keep 0.8 (measured in parentheses): " in " ".join(
        output.split()
    )
    return folder


@pytest.fixture
def folder(fresh: Path, tmp_path: Path) -> Path:
    """The bundle, for one test."""
    return Path(shutil.copytree(fresh, tmp_path / "bundle"))


def calibration_of(folder: Path) -> Calibration:
    calibration = read_calibration(folder, read_manifest(folder))
    assert calibration is not None
    return calibration


def measured(calibration: Calibration) -> dict[str, Any]:
    """All but the times, which differ from run to run."""
    return calibration.model_dump(exclude={"latency"})


def test_figures_are_those_of_the_runtime(calibrated: Path, data: Path, model: Model) -> None:
    calibration = calibration_of(calibrated)
    assert (calibration.data, calibration.texts, calibration.confidence) == ("held-out.jsonl", TEXTS, 0.975)
    records = [json.loads(line) for line in data.read_text().splitlines()]
    encoded = [model.encode(record["text"]) for record in records]
    exact = [model.run([Row(one.token_ids, one.type_ids, model.knobs.exact())])[0].logits.argmax() for one in encoded]
    for setting in calibration.settings:
        knobs = model.knobs.check(setting.knobs)
        rows = [Row(one.token_ids, one.type_ids, knobs, seed=place) for place, one in enumerate(encoded)]
        labels = [model.run([row])[0].logits.argmax() for row in rows]
        for index, bucket in enumerate(calibration.buckets):
            inside = [bucket.low <= len(one.token_ids) <= bucket.high for one in encoded]
            answers = [(labels[place], exact[place], records[place]["label"]) for place in np.flatnonzero(inside)]
            assert setting.agreement[index].successes == sum(label == right for label, right, _ in answers)
            assert setting.agreement[index].trials == bucket.texts == len(answers)
            named = [model.manifest.labels[label] == name for label, _, name in answers]
            assert setting.accuracy[index].successes == sum(named)
    [latency] = calibration.latency
    assert [speed.knobs for speed in latency.speeds] == [setting.knobs for setting in calibration.settings]
    assert latency.tokens == [16, 32, 64]


def test_the_bundle_loads_with_both_files_and_inspect_shows_them(
    calibrated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not (calibrated / PARTIAL).exists()
    circles = ElementTree.parse(calibrated / PLOT).findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == sum(len(bucket.frontier) for bucket in calibration_of(calibrated).buckets)
    load(calibrated)
    assert main(["inspect", str(calibrated)]) == 0
    assert f"Measured on {TEXTS} texts of held-out.jsonl" in capsys.readouterr().out


def test_several_knobs_get_a_frontier(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "bundle", "keep", labels=["negative", "positive"])
    tiny.sign(folder, max_tokens=64)
    texts = [{"text": record["text"]} for record in lines(["any"])]
    data = written(tmp_path / "held-out.jsonl", texts)
    assert calibrate(folder, "--data", data)[::2] == (0, "")
    assert (folder / PLOT).exists()
    calibration = calibration_of(folder)
    assert len(calibration.settings) > 1
    assert all(setting.accuracy == [] for setting in calibration.settings)
    for index, bucket in enumerate(calibration.buckets):
        times = [setting.time[index] for setting in calibration.frontier(index)]
        assert times == sorted(times, reverse=True)
        assert bucket.texts == calibration.settings[0].agreement[index].trials < TEXTS


def test_an_interrupted_run_goes_on_where_it_ended(calibrated: Path, folder: Path, data: Path) -> None:
    """And a calibration of another revision is replaced."""
    old = json.loads((calibrated / CALIBRATION).read_text()) | {"revision": "0" * 64}
    (folder / CALIBRATION).write_text(json.dumps(old))
    command = [sys.executable, "-m", "attenuator", "calibrate", str(folder), "--data", str(data), *GOAL]
    # Tests that a shell runs in the background ignore the signal, and so would what they start.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    partial = folder / PARTIAL
    while process.poll() is None and not (partial.exists() and partial.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    outdated, interrupted = process.communicate(timeout=120)[1].splitlines()
    assert "belongs to revision" in outdated
    assert interrupted == "attenuator calibrate: interrupted; the same command goes on where it ended"
    assert process.returncode == 130
    assert not (folder / CALIBRATION).exists()
    with partial.open("ab") as stream:
        stream.write(b'{"setting": 3, "ba')  # a line that was cut off
    assert calibrate(folder, "--data", data)[::2] == (0, "")
    assert measured(calibration_of(folder)) == measured(calibration_of(calibrated))
    assert not partial.exists()


def test_times_of_this_device_are_taken_again_and_others_stay(calibrated: Path, folder: Path, data: Path) -> None:
    code, _, errors = calibrate(folder, "--data", data, "--only-times")
    assert code == 1
    assert "has no calibration" in errors
    shutil.copy(calibrated / CALIBRATION, folder)
    assert calibrate(folder, "--data", data, "--only-times", "--threads", "1")[::2] == (0, "")
    before, after = calibration_of(calibrated), calibration_of(folder)
    assert measured(after) == measured(before)
    elsewhere = [row for row in before.latency if row.threads != 1]
    assert after.latency[:-1] == elsewhere
    assert (after.latency[-1].threads, after.latency[-1].device) == (1, before.latency[0].device)
    assert after.latency[-1].speeds != before.latency[0].speeds


def test_times_stay_where_the_machine_is_busy_and_all_else_is_measured(
    calibrated: Path, folder: Path, data: Path
) -> None:
    assert calibrate(folder, "--data", data, "--keep-times")[0] == 1, "there are none"
    old = json.loads((calibrated / CALIBRATION).read_text())
    times = old["latency"]
    del old["certainty"]
    (folder / CALIBRATION).write_text(json.dumps(old))
    assert calibrate(folder, "--data", data, "--keep-times", "--only-times")[0] == 1
    assert calibrate(folder, "--data", data, "--keep-times")[::2] == (0, "")
    again = calibration_of(folder)
    assert [row.model_dump(mode="json") for row in again.latency] == times
    assert measured(again) == measured(calibration_of(calibrated))
    assert again.certainty is not None
    assert again.certainty.texts == TEXTS
    assert len(again.certainty.settings) >= len(again.settings) - 1


def test_the_goal_is_that_of_requests_that_set_nothing(calibrated: Path, folder: Path, data: Path) -> None:
    """And stays with the times, unless another one is asked for."""
    model, before = load(folder, check=False), calibration_of(calibrated)
    assert before.default_agreement == 0.8
    texts = read_texts(data, model, min_agreement=0.8, confidence=0.975, truncate=False)
    before = before.model_copy(update={"default_agreement": 0.7})
    for settings, kept in ((CalibrateSettings(data=data), 0.7), (CalibrateSettings(data=data, min_agreement=0.9), 0.9)):
        assert pipeline.calibrate(model, folder, settings, texts, before).calibration.default_agreement == kept
    again = calibration_of(folder)
    assert (again.default_agreement, again.latency) == (0.9, before.latency)


def test_partial_results_are_kept_and_those_of_another_run_are_refused(tmp_path: Path) -> None:
    logits = np.array([[1.5, -2.0], [0.25, 3.0]], dtype=np.float32)
    with PartialResults(tmp_path, {"revision": "a"}, 2, restart=False) as results:
        assert results.get(1, 2) is None
        results.put(1, 2, logits)
    with PartialResults(tmp_path, {"revision": "a"}, 2, restart=False) as results:
        again = results.get(1, 2)
        assert again is not None
        assert np.array_equal(again, logits)
    with pytest.raises(InvalidRequest, match="of an interrupted run with another bundle revision.*--restart"):
        PartialResults(tmp_path, {"revision": "b"}, 2, restart=False)
    with PartialResults(tmp_path, {"revision": "b"}, 2, restart=True) as results:
        assert results.get(1, 2) is None
    (tmp_path / PARTIAL).write_text("[\n")
    with pytest.raises(InvalidRequest, match="is damaged: give --restart"):
        PartialResults(tmp_path, {"revision": "a"}, 2, restart=False)


def test_too_little_data_is_refused_and_says_how_much_is_needed(folder: Path, data: Path) -> None:
    code, _, errors = calibrate(folder, "--data", data, "--min-agreement", "0.99")
    assert code == 1
    assert f"has {TEXTS} texts, must have at least 368" in errors
    assert "0.95 takes 72, 0.9 takes 36" in errors
    assert errors.count("\n") == 1
    assert not (folder / PARTIAL).exists()


def test_a_single_text_is_one_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"text": "good film"}\n')
    _, _, errors = calibrate(folder, "--data", tmp_path / "one.jsonl")
    assert "has 1 text, must have at least" in errors


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"label": "lukewarm"}, "line 3 has the label 'lukewarm', must be one of: negative, neutral, positive"),
        ({"label": 1}, "line 3 has the label '1', must be one of: .*; or, on every line, its place from 0 to 2"),
        ({"label": 1.5}, "line 3: label is 1.5, must be one label of the bundle"),
        ({"label": None}, "line 3 has no label, but .* has one: every line must have one, or none"),
        ({"labels": ["positive"]}, "line 3 has both label and labels, must have one of them"),
        ({"label": None, "labels": ["positive", "neutral"]}, "line 3: labels is a list, must be one label"),
        ({"text": ""}, "line 3"),
        ({"text": "good " * 100}, "line 3.*give --truncate"),
    ],
    ids=["unknown", "one-place", "number", "missing", "both", "two", "empty", "long"],
)
def test_a_wrong_line_is_refused_by_its_number(
    model: Model, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    records = lines(model.manifest.labels)
    records[2] |= change
    path = written(tmp_path / "data.jsonl", records)
    with pytest.raises(InvalidRequest, match=sentence):
        read_texts(path, model, min_agreement=0.8, confidence=0.95, truncate=False)


def test_labels_of_several_are_compared_as_sets(bundles: dict[str, Path], tmp_path: Path) -> None:
    model = load(bundles["multi"], check=False)
    first, second, *_ = model.manifest.labels
    named = [[], [first], [second, first], second]
    texts = [{"text": "good", "label" if isinstance(one, str) else "labels": one} for one in named]
    read = read_texts(written(tmp_path / "data.jsonl", texts), model, min_agreement=0.1, confidence=0.9, truncate=False)
    assert read.truth is not None
    logits = np.where(read.truth, 9, -9).astype(np.float32)
    assert correct(logits, read.truth, model.manifest).all()
    assert correct(-logits, read.truth, model.manifest).sum() == 0


def test_places_of_labels_are_read_as_training_reads_them(model: Model, tmp_path: Path) -> None:
    """As whole numbers or as text, on every line; `train` with such a file keeps the checkpoint's labels too."""
    records = lines(model.manifest.labels)
    truths = []
    for write in (
        lambda label: label,
        model.manifest.labels.index,
        lambda label: f"{model.manifest.labels.index(label)}",
    ):
        path = written(tmp_path / "data.jsonl", [record | {"label": write(record["label"])} for record in records])
        read = read_texts(path, model, min_agreement=0.8, confidence=0.95, truncate=False)
        truths.append(np.asarray(read.truth).tolist())
    assert truths[0] == truths[1] == truths[2]
    assert np.asarray(truths[0]).any(axis=0).all(), "every label occurs"


def test_a_bundle_without_knobs_is_refused(bundles: dict[str, Path], data: Path) -> None:
    code, _, errors = calibrate(bundles["softmax"], "--data", data)
    assert code == 1
    assert "has no knob, must have one to be calibrated" in errors


def test_usage_errors_have_code_2(folder: Path) -> None:
    assert calibrate(folder)[0] == 2
    assert calibrate(folder, "--data", "x.jsonl", "--confidence", "1.5")[0] == 2


def test_times_that_contradict_the_work_are_modelled(
    fresh: Path, model: Model, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine found a setting 50 times as fast as exact, at one length: twice, so that it was no accident."""
    texts = read_texts(data, model, min_agreement=0.8, confidence=0.975, truncate=False)
    settings = [model.knobs.exact(), model.knobs.check({"num_hashes": 8})]
    modelled = TimeModel(count_work(read_graph(fresh / MODEL)))
    lengths: list[int] = []

    def clock(runs: list[Any], *_: Any, **__: Any) -> list[Timing]:
        gains = [1.0, 50.0 if lengths[-1] == 32 else 1.1, *[1.0] * (len(runs) - 2)]
        return [Timing(0.1 / gain, gain, gain, gain) for gain in gains]

    monkeypatch.setattr(timing, "in_turns", clock)
    latency, priced = timing.time_settings(
        model, texts.encoded, settings, threads=1, modelled=modelled, progress=lengths.append
    )
    assert lengths == latency.tokens == [16, 32, 64]
    assert priced == 1
    assert latency.speeds[0].seconds == [0.1] * 3
    believed, priced_s = 0.1 / 1.1, 0.1 / modelled.gain(32, settings[1])
    assert latency.speeds[1].seconds == pytest.approx([believed, priced_s, believed], rel=1e-3)
