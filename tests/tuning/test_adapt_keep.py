"""`attenuator adapt --keep`: a checkpoint learns to bear a small share of its tokens, and stays what it was at 1."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, save
from counting import counted, trained

from attenuator.__main__ import main as attenuator
from attenuator.bundle import MODEL_DATA, TAUGHT, TAUGHT_PROBE, read_manifest
from attenuator.errors import AttenuatorError, BundleError, ExportError, InvalidRequest
from attenuator.export import taught
from attenuator.export.pipeline import export
from attenuator.export.selection import SCHEDULES, exponents
from attenuator.export.source import load as load_source
from attenuator.runtime import Row, load
from attenuator.runtime.check import check_bundle
from attenuator.tuning import data
from attenuator.tuning.adapt.keep import SHARES, cheapest_of
from attenuator.tuning.adapt.keep_command import EPOCHS, LEARNING_RATE, PATIENCE, adapt_keep
from attenuator.tuning.adapt.selecting import load_keep_student, work
from attenuator.tuning.adapt.teaching import Teaching
from attenuator.tuning.batches import Rows


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("".join(f"{text}\n" for text, _ in counted(400)))
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of three layers that softmax attention has taught something."""
    return trained(tmp_path_factory.mktemp("source"))


def command(source: Path, texts: Path, output: Path, *further: str) -> list[str]:
    return [
        "adapt", str(source), "--keep", "--texts", str(texts), "--output", str(output), "--held-out-share", "0.3",
        "--learning-rate", "1e-3", "--batch-tokens", "512", "--epochs", "4", "--threads", "1", "--minutes", "30",
        *further,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, source: Path, texts: Path) -> Path:
    folder = tmp_path_factory.mktemp("adapted") / "out"
    assert attenuator(command(source, texts, folder, "--schedule", "first")) == 0
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, adapted: Path) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "taught"
    export(str(adapted), output=folder)
    return folder


def test_more_answers_stay_at_small_shares(adapted: Path) -> None:
    record = json.loads((adapted / "training.json").read_text())
    assert [row["value"] for row in record["after"]] == list(SHARES)
    before, after = (np.array([row["agreement"] for row in record[when]]) for when in ("before", "after"))
    assert after[:2].mean() > before[:2].mean() + 0.03
    assert after[0] >= 0.95
    assert record["losses"][-1] < 0.7 * record["losses"][0]
    assert record["below"] > 0.05
    assert not list(adapted.glob("steps*"))


def test_the_checkpoint_stays_what_it_was(source: Path, adapted: Path) -> None:
    before, after = load_source(str(source)), load_source(str(adapted))
    assert before.weights_sha256 == after.weights_sha256
    assert after.taught is not None
    assert 0.05 <= after.taught.below <= 1
    names = set(after.taught.tensors)
    assert not any("word_embeddings" in name for name in names), "the token table is shared"
    assert any("encoder.layer.2" in name for name in names)


def rows_of(folder: Path, texts: Path, shares: list[float]) -> list[Row]:
    model = load(folder, check=False)
    encoded = data.encode(data.read(texts, labelled=False).texts[: len(shares)], model.encoder, truncate=False)
    return [
        Row(one.token_ids, one.type_ids, model.knobs.check({"keep": share}))
        for one, share in zip(encoded, shares, strict=True)
    ]


def test_exact_answers_are_the_originals_bit_for_bit_in_any_batch(
    source: Path, bundle: Path, texts: Path, tmp_path: Path
) -> None:
    limit = read_manifest(bundle).taught
    assert limit is not None
    export(str(source), output=tmp_path / "original", schedule="first", merge="mean")
    original, both = load(tmp_path / "original", check=False), load(bundle)
    shares = [1.0, 0.05, limit.below, 0.3, 1.0, np.nextafter(limit.below, 0), 0.05, 1.0]
    rows = rows_of(bundle, texts, shares)
    mixed, of_original = both.run(rows), original.run(rows)
    for row, share, found, plain in zip(rows, shares, mixed, of_original, strict=True):
        same = bool((found.logits == plain.logits).all())
        assert same == (share >= limit.below), share
        assert (both.run([row])[0].logits == found.logits).all()


def test_the_bundle_has_what_was_taught(adapted: Path, bundle: Path, texts: Path) -> None:
    weights = taught.read(adapted)
    assert weights is not None
    student = load_keep_student(adapted, weights.schedule)
    student.trainable.inner.load_state_dict(dict(weights.tensors), strict=False)
    for share in (0.05, 0.99 * weights.below):
        rows = rows_of(bundle, texts, [share] * 6)
        encoded = data.encode(data.read(texts, labelled=False).texts[:6], student.trainable.texts, truncate=False)
        expected = student.predict(Rows(encoded), share, 512)
        found = np.stack([answer.logits for answer in load(bundle, check=False).run(rows)])
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def test_int8_rounds_both_and_shares_no_less(adapted: Path, texts: Path, tmp_path: Path) -> None:
    manifest = export(str(adapted), output=tmp_path / "int8", precision="int8")
    assert manifest.taught is not None
    assert {TAUGHT, TAUGHT_PROBE, MODEL_DATA} <= set(manifest.files)
    rows = rows_of(tmp_path / "int8", texts, [1.0, 0.05])
    assert len(load(tmp_path / "int8").run(rows)) == 2


def test_damaged_second_graphs_are_refused_in_a_sentence(bundle: Path, tmp_path: Path) -> None:
    def refused(change: Any) -> str:
        folder = shutil.copytree(bundle, tmp_path / "copy")
        change(folder)
        with pytest.raises(BundleError) as caught:
            check_bundle(folder)
        shutil.rmtree(folder)
        return str(caught.value)

    def rewrite(folder: Path, name: str, content: bytes) -> None:
        """Another file under a manifest that knows it."""
        from attenuator.bundle import file_sha256, revision

        (folder / name).write_bytes(content)
        manifest = json.loads((folder / "bundle.json").read_text())
        manifest["files"][name] = file_sha256(folder / name)
        manifest["revision"] = revision(manifest["files"])
        (folder / "bundle.json").write_text(json.dumps(manifest))

    def change_manifest(folder: Path, **fields: Any) -> None:
        manifest = json.loads((folder / "bundle.json").read_text())
        (folder / "bundle.json").write_text(json.dumps(manifest | fields))

    whole = (bundle / TAUGHT).read_bytes()
    cut = refused(lambda folder: (folder / TAUGHT).write_bytes(whole[:-9]))
    assert cut.endswith("taught.onnx is damaged: its SHA-256 is not the one in bundle.json")
    assert "taught.onnx cannot be" in refused(lambda folder: rewrite(folder, TAUGHT, whole[: len(whole) // 2]))
    other = (bundle / "model.onnx").read_bytes()
    assert "taught.onnx gives other logits than taught.npz" in refused(lambda folder: rewrite(folder, TAUGHT, other))
    assert "taught.onnx is missing" in refused(lambda folder: (folder / TAUGHT).unlink())
    assert "taught does not say" in refused(lambda folder: change_manifest(folder, taught=None))
    above = {"knob": "keep", "below": 1.5}
    assert "must be a knob of the bundle" in refused(lambda folder: change_manifest(folder, taught=above))


class Interrupted(Teaching):
    """Gets a Ctrl-C in the fourth step."""

    def compute_loss(self, *arguments: Any, **further: Any) -> Any:
        if self.state.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_loss(*arguments, **further)


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(
    source: Path, adapted: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command(source, texts, tmp_path / "out", "--schedule", "first")
    with monkeypatch.context() as patch:
        patch.setattr("attenuator.tuning.adapt.keep.Teaching", Interrupted)
        assert attenuator(arguments) == 130
    assert not (tmp_path / "out" / taught.FILE).exists()
    assert attenuator([*arguments, "--resume"]) == 0
    once, twice = taught.read(adapted), taught.read(tmp_path / "out")
    assert once is not None
    assert twice is not None
    for name, tensor in once.tensors.items():
        assert torch.equal(twice.tensors[name], tensor), name


def test_weights_that_came_no_nearer_are_not_kept(source: Path, texts: Path, tmp_path: Path) -> None:
    wild = command(source, texts, tmp_path / "out", "--schedule", "second", "--learning-rate", "0.3", "--epochs", "0.2")
    assert attenuator(wild) == 0
    assert not (tmp_path / "out" / taught.FILE).exists()
    assert json.loads((tmp_path / "out" / "training.json").read_text())["below"] == 0.05
    assert load_source(str(tmp_path / "out")).taught is None


def test_where_tokens_are_left_out_is_tried_first(source: Path, texts: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = adapt_keep(source, texts, tmp_path / "out", minutes=0.05, threads=1, progress=said.append)
    tried = [line.rpartition(" ")[2] for line in said if line.startswith("tries schedule")]
    assert tried == ["first", "second", "rising"], "middle is second in three layers"
    assert json.loads((tmp_path / "out" / "training.json").read_text())["schedule"] in tried
    assert adapt_keep(source, texts, tmp_path / "out", minutes=9, threads=1, progress=said.append).after == result.after


def test_the_schedule_is_chosen_that_takes_the_least_work_for_a_distance() -> None:
    curves = {"first": ([0.1, 0.3, 0.6], [2.0, 1.0, 0.9]), "second": ([0.5, 0.6, 0.7], [1.1, 0.95, 0.9])}
    assert cheapest_of(curves) == "first", "second is nearer at 0.6, but 1.0 costs it more"
    assert cheapest_of(curves | {"first": ([0.1, 0.5, 0.9], [3.0, 2.0, 1.0])}) == "second", "as for pairs"
    assert cheapest_of(curves | {"best": ([0.2, 0.9], [0.5, 0.4])}) == "best", "nearer than any other comes"
    assert cheapest_of(curves | {"uneven": ([0.1, 0.2, 0.6], [1.0, 1.4, 0.9])}) == "uneven", (
        "at 0.2 it is as near as at 0.1"
    )


def test_work_counts_the_rows_that_are_left(source: Path) -> None:
    student = load_keep_student(source, "first")
    assert work(student, "first", 1.0, [40]) == pytest.approx(1)
    at_once, later = (work(student, name, 0.1, [40]) for name in ("first", "second"))
    assert 0.15 < at_once < later < 0.7


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("layers", [2, 3, 4, 12, 24])
def test_no_exponent_is_above_one(name: str, layers: int) -> None:
    assert all(0 <= each <= 1 for each in exponents(name, layers, "first"))


def failing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert attenuator(arguments) == 1
    [line] = capsys.readouterr().err.strip().splitlines()
    return line


def test_what_cannot_be_taught_is_refused(
    source: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("".join(f"{text}\n" for text, _ in counted(12)))
    assert "must be at least 1 and 20: give more texts" in failing(command(source, few, tmp_path / "out"), capsys)
    both = failing(command(source, texts, tmp_path / "out", "--attention", "yoso"), capsys)
    assert "--attention is given beside --keep" in both
    hashes = failing(command(source, texts, tmp_path / "out", "--num-hashes", "8"), capsys)
    assert "--num-hashes is given beside --keep" in hashes
    without = [word for word in command(source, texts, tmp_path / "out", "--schedule", "first") if word != "--keep"]
    assert "--schedule is given without --keep" in failing(without, capsys)
    one_layer = save(CHECKPOINTS["bert-one-layer"], tmp_path / "one-layer")
    alone = failing(command(one_layer, texts, tmp_path / "out"), capsys)
    assert alone.endswith("has no keep to teach: it has one layer, which computes the first token alone")
    assert not (tmp_path / "out").exists()


def test_taught_weights_stay_with_what_they_were_taught_with(adapted: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="attention is 'mca', but the weights of 'out' were taught with softmax"):
        export(str(adapted), output=tmp_path / "bundle", attention="mca")
    with pytest.raises(ExportError, match="schedule is 'rising', but the weights of 'out' were taught with 'first'"):
        export(str(adapted), output=tmp_path / "bundle", schedule="rising")
    with pytest.raises(ExportError, match="merge is 'none', but the weights of 'out' were taught with 'mean'"):
        export(str(adapted), output=tmp_path / "bundle", merge="none")
    with pytest.raises(ExportError, match="precision is 'fp16', but a bundle with taught weights must be fp32 or int8"):
        export(str(adapted), output=tmp_path / "bundle", precision="fp16")
    assert export(str(adapted), output=tmp_path / "bundle", schedule="none").taught is None
    with pytest.raises(InvalidRequest, match="was taught already and would lose what it learnt"):
        adapt_keep(adapted, texts, tmp_path / "again", minutes=1, threads=1, progress=print)
    damaged = shutil.copytree(adapted, tmp_path / "damaged")
    (damaged / taught.FILE).write_bytes(b"no tensors")
    with pytest.raises(AttenuatorError, match="taught.safetensors' cannot be read"):
        export(str(damaged), output=tmp_path / "bundle")


def test_texts_choose_a_share_for_what_was_taught(adapted: Path, texts: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    manifest = export(str(adapted), output=tmp_path / "bundle", texts=texts, progress=steps.append)
    tried = [step for step in steps if step.startswith("try ")]
    assert tried
    assert all("schedule first, merge mean," in step for step in tried)
    selection = manifest.provenance.selection
    assert selection is not None
    assert (selection.schedule, selection.merge) == ("first", "mean")
    assert manifest.taught is not None


def test_help_says_what_teaching_takes_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        attenuator(["adapt", "--help"])
    words = re.findall(r"With --keep ([\d.e-]+) by default", " ".join(capsys.readouterr().out.split()))
    assert sorted(map(float, words)) == sorted([LEARNING_RATE, EPOCHS, PATIENCE])
