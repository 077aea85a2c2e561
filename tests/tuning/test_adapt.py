"""`attenuator adapt`: a softmax checkpoint learns another attention, from itself."""

import json
import os
import re
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, save
from training_data import LABELS, write

from attenuator.__main__ import main as attenuator
from attenuator.bundle import read_manifest
from attenuator.export.pipeline import export
from attenuator.runtime import Row, load
from attenuator.training.samples import AttentionSample
from attenuator.training.yoso import fitting
from attenuator.training.yoso.attention import attend
from attenuator.training.yoso.fitting import fits, nearest
from attenuator.training.yoso.settings import SEARCHED, starting
from attenuator.tuning import checkpoints, data
from attenuator.tuning.adapt.distillation import Distillation, divergence
from attenuator.tuning.adapt.pipeline import load_student, load_teacher, recorded
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import run

HASHES = 8
SOURCES = ("bert", "encoder-softmax")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = write(tmp_path_factory.mktemp("data") / "texts.jsonl", 128)
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> dict[str, Path]:
    """Classifiers that softmax attention has taught something."""
    folder = tmp_path_factory.mktemp("sources")
    read = data.read(texts, labelled=True).texts
    targets = np.array([LABELS.index(text.labels[0]) for text in read if text.labels])
    for name in SOURCES:
        source = save(CHECKPOINTS[name], folder / f"{name}-random") / "config.json"
        model = checkpoints.load(source, "softmax", labels=LABELS, task="single_label", seed=3)
        rows = Rows(data.encode(read, model.texts, truncate=False), targets)
        plan = Plan(folder / f"{name}-steps", epochs=5, learning_rate=4e-3, batch_tokens=256)
        run(model.model, model.collator, rows, None, plan)
        model.save(folder / name)
    return {name: folder / name for name in SOURCES}


def command(source: Path, texts: Path, output: Path, *further: str) -> list[str]:
    return [
        "adapt", str(source), "--data", str(texts), "--output", str(output), "--held-out-share", "0.25",
        "--num-hashes", str(HASHES), "--hash-bits", "4", "--learning-rate", "3e-3", "--batch-tokens", "256",
        "--epochs", "5", "--threads", "1", "--max-minutes", "30", *further,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, sources: dict[str, Path], texts: Path) -> dict[str, Path]:
    """What the command makes of each."""
    folder = tmp_path_factory.mktemp("adapted")
    for name in SOURCES:
        assert attenuator(command(sources[name], texts, folder / name)) == 0
    return {name: folder / name for name in SOURCES}


@pytest.mark.parametrize("name", SOURCES)
def test_answers_stay_and_attention_comes_nearer(name: str, adapted: dict[str, Path]) -> None:
    record = json.loads((adapted[name] / "training.json").read_text())
    assert record["settings"]["normalize"] == 2, "a weighted mean, as softmax's"
    assert [row["value"] for row in record["after"]] == [0, HASHES / 2, HASHES, 2 * HASHES, 4 * HASHES]
    for before, after in zip(record["before"], record["after"], strict=True):
        assert after["low"] <= after["agreement"] <= after["high"]
        if after["value"] in (0, HASHES):
            assert after["agreement"] >= max(0.9, before["agreement"])
    assert record["losses"][-1] < 0.8 * record["losses"][0]
    assert record["accuracy_of_teacher"] > 0.9
    assert not (adapted[name] / "steps").exists()


@pytest.mark.parametrize("name", SOURCES)
def test_the_bundle_has_what_was_trained(name: str, adapted: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    export(str(adapted[name]), attention="yoso", output=tmp_path / "bundle", schedule="none")  # one graph to trace
    manifest = read_manifest(tmp_path / "bundle")
    attributes = manifest.attention.attributes
    assert (attributes["normalize"], attributes["hash_bits"]) == (2, 4)
    assert next(knob.default for knob in manifest.knobs if knob.name == "num_hashes") == HASHES
    for hashes in (0, HASHES):  # in evaluation as served, sampled hashes too
        student = checkpoints.load(adapted[name], settings={"num_hashes": hashes})
        rows = Rows(data.encode(data.read(texts, labelled=False).texts[:6], student.texts, truncate=False))
        expected = predict(student.model, rows, student.collator, 512)
        knobs = {knob.name: knob.exact for knob in manifest.knobs} | {"num_hashes": hashes}
        answers = load(tmp_path / "bundle").run([Row(one.token_ids, one.type_ids, knobs) for one in rows.encoded])
        np.testing.assert_allclose(np.stack([answer.logits for answer in answers]), expected, rtol=0, atol=2e-4)


class Interrupted(Distillation):
    """Gets a Ctrl-C in the fourth step."""

    def compute_loss(self, *arguments: Any, **further: Any) -> Any:
        if self.state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_loss(*arguments, **further)


class Aborted(Distillation):
    """Gets two Ctrl-C in the second step."""

    def compute_loss(self, *arguments: Any, **further: Any) -> Any:
        if self.state.global_step == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_loss(*arguments, **further)


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(
    sources: dict[str, Path],
    adapted: dict[str, Path],
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = command(sources["bert"], texts, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("attenuator.tuning.adapt.pipeline.Distillation", Aborted)
        assert attenuator(arguments) == 130
        assert "interrupted at once; the same command with --resume goes on" in capsys.readouterr().err
        patch.setattr("attenuator.tuning.adapt.pipeline.Distillation", Interrupted)
        assert attenuator([*arguments, "--resume"]) == 130
    said = capsys.readouterr().err
    assert re.search(r"\d+ of \d+ steps, then interrupted; the same command with --resume goes on", said)
    assert "held-out agreement=" in said, "progress is shown in a log as well"
    assert not (tmp_path / "out" / "model.safetensors").exists()
    path = tmp_path / "out" / "training.json"
    written = json.loads(path.read_text())
    figures = [row | {"agreement": "high"} for row in written["before"]]
    for name, broken in (
        ("settings", []),
        ("settings", {"hash_bits": 99}),
        ("before", [1]),
        ("before", []),
        ("before", figures),
    ):
        path.write_text(json.dumps(written | {name: broken}))
        assert attenuator([*arguments, "--resume"]) == 1
        assert "has no run to go on with: it lacks a readable training.json\n" in capsys.readouterr().err
    path.write_text(json.dumps(written))
    assert attenuator([*arguments, "--column", "text", "--resume"]) == 1
    assert "was begun with column None and cannot go on with 'text'" in capsys.readouterr().err
    assert attenuator([*arguments, "--resume"]) == 0
    resumed, whole = (folder / "model.safetensors" for folder in (tmp_path / "out", adapted["bert"]))
    assert resumed.read_bytes() == whole.read_bytes()


def test_the_command_fails_where_the_agreement_is_not_reached(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save(CHECKPOINTS["bert"], tmp_path / "random")
    # Without labels: those of the file are not the model's.
    plain = tmp_path / "texts.txt"
    plain.write_text("".join(json.loads(line)["text"] + "\n" for line in texts.read_text().splitlines()))
    further = (
        "--epochs",
        "4",
        "--patience",
        "1",
        "--learning-rate",
        "1e-8",
        "--num-hashes",
        "1",
        "--min-agreement",
        "1",
    )
    assert attenuator([*command(source, plain, tmp_path / "out"), *further]) == 1
    captured = capsys.readouterr()
    assert "the agreement asked for, 1, was NOT reached: it is 0." in captured.err
    assert "accuracy" not in captured.out
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["ended"] == "early", "nothing can be gained at such a learning rate"
    assert 0.4 * record["steps"] < record["steps_done"] < record["steps"], "patience begins with the noise"
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_refusals_are_one_sentence(
    sources: dict[str, Path],
    adapted: dict[str, Path],
    texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = write(tmp_path / "few.jsonl", 8)
    other = tmp_path / "other.jsonl"
    other.write_text(texts.read_text().replace('"negative"', '"awful"'))
    cases = [
        (adapted["bert"], texts, "was trained with yoso attention, must have been with softmax"),
        (save(CHECKPOINTS["deberta"], tmp_path / "deberta"), texts, "computes its attention by itself"),
        (save(CHECKPOINTS["modernbert"], tmp_path / "modernbert"), texts, "attention within a window"),
        (sources["bert"], few, "give more texts"),
        (sources["bert"], texts, "'texts.jsonl' has the same content as --data", "--held-out", str(texts)),
        (sources["bert"], other, "has the label 'awful', must be one of the model's: negative, positive"),
        (tmp_path / "nowhere", texts, "is not a folder; give a checkpoint folder"),
    ]
    for source, file, sentence, *further in cases:
        assert attenuator(command(source, file, tmp_path / "out", *further)) == 1
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert captured.err.count("\n") == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_recorded_is_softmax_attention_without_padding(
    name: str, sources: dict[str, Path], texts: Path
) -> None:
    teacher = load_teacher(sources[name])
    encoded = data.encode(data.read(texts, labelled=False).texts[:2], teacher.texts, truncate=False)
    for samples, starts in recorded(teacher, encoded):
        assert len(samples) == 2
        assert len(samples[0].query) == starts[-1]
        for sample in samples:
            query, key, value = (tensor.transpose(0, 1) for tensor in (sample.query, sample.key, sample.value))
            mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            torch.testing.assert_close(sample.mixed, mixed.transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_a_norm_lift_is_that_of_the_settings_not_of_a_softmax_config(sources: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(sources["encoder-softmax"], tmp_path / "lifted")
    path = tmp_path / "lifted" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"norm_lift": 1.5}))
    for lift in (0.0, 9.0):
        student = load_student(tmp_path / "lifted", "yoso", replace(starting(), norm_lift=lift))
        assert student.inner.config.norm_lift == lift
        assert student.inner.layers[0].attention.attributes["norm_lift"] == lift


def test_the_settings_that_come_nearest_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the expectation of a number of bits has mixed are nearest to that number."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(64, 2, 16, generator=draw) for _ in range(3))
    starts = torch.tensor([0, 64], dtype=torch.int32)
    monkeypatch.setattr(fitting, "NEAREST", 100)
    for bits in (4, 6, 8):
        mixed = attend(query, key, value, starts, replace(starting(), num_hashes=0, hash_bits=bits), 0)
        samples = [([AttentionSample(query, key, value, mixed)], starts)]
        tried = fits(samples, starting(), ())
        exact = [
            (fit.settings.hash_bits, fit.settings.norm_lift) for fit in tried if (fit.expected_error or 0.0) < 1e-9
        ]
        assert exact == [(bits, 0.0)]
        assert all(fit.error > fit.expected_error for fit in tried if fit.expected_error is not None)
        best = min(tried, key=lambda fit: fit.error)
        assert nearest(tried) == best.settings, "by the error that will be served"
        assert tried[-1].settings.hash_bits == 8, "two bits above log2 of the length"
        begin = asdict(starting())
        varied = {name for fit in tried for name, value in asdict(fit.settings).items() if value != begin[name]}
        assert varied == set(SEARCHED), "what --help says"
    monkeypatch.setattr(fitting, "NEAREST", 3)
    tried = sorted(fits(samples, starting(), ()), key=lambda fit: fit.error)
    assert [fit.expected_error is None for fit in tried] == [False] * 3 + [True] * (len(tried) - 3)
    lifted = [replace(starting(), norm_lift=lift) for lift in (0.0, 8 * 4.0)]  # tau times the root of head_dim
    assert [fit.settings for fit in fits(samples, starting(), {"hash_bits"})] == lifted
    assert [fit.settings for fit in fits(samples, lifted[1], {"hash_bits", "norm_lift"})] == lifted[1:]


@pytest.mark.parametrize("task", ["single_label", "multi_label", "regression"])
def test_divergence_is_none_of_equal_answers_alone(task: Any) -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    assert divergence(logits, logits, task).abs() < 1e-6
    assert divergence(logits + torch.tensor([0.5, 0.0, -0.5]), logits, task) > 1e-3


def test_divergence_is_that_of_the_labels_probabilities() -> None:
    ours, theirs = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.0, 0.5]])
    p, q = theirs.softmax(1), ours.softmax(1)
    assert divergence(ours, theirs, "single_label").item() == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-6)
    p, q = theirs.sigmoid(), ours.sigmoid()
    each = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    assert divergence(ours, theirs, "multi_label").item() == pytest.approx(float(each.sum()), abs=1e-6)
