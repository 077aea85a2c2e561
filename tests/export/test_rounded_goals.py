"""Goals and probabilities of an int8 bundle refer to the checkpoint's exact answers in fp32, not to its own."""

import io
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TEXTS, Checkpoint, bert, load, save

from attenuator.__main__ import main
from attenuator.bundle import CALIBRATION, read_manifest
from attenuator.calibration import default_setting
from attenuator.export import export
from attenuator.export.choose import FEWEST_TEXTS
from attenuator.runtime import Model, Row
from attenuator.runtime import load as serve
from attenuator.runtime.explaining import judge_of

WORDS = " ".join(TEXTS).split()
PAIRS = FEWEST_TEXTS + 101


def command(*words: str | Path) -> tuple[int, str, str]:
    """Runs the command; exit code, standard output, standard error."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = main([str(word) for word in words])
    return code, output.getvalue(), errors.getvalue()


def logits(model: Model, pairs: list[list[str]], knobs: Mapping[str, Any]) -> np.ndarray:
    encoded = [model.encode(*pair) for pair in pairs]
    rows = [Row(one.token_ids, one.type_ids, model.knobs.check(knobs), seed) for seed, one in enumerate(encoded)]
    return np.stack([result.logits for result in model.run(rows)])


@pytest.fixture(scope="module")
def pairs() -> list[list[str]]:
    draw = np.random.default_rng(0)
    return [[" ".join(draw.choice(WORDS, draw.integers(3, 20))) for _ in range(2)] for _ in range(PAIRS)]


@pytest.fixture(scope="module")
def folder(pairs: list[list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weak pair model, whose answers lie near the boundary of two labels: in fp32, in int8, and texts for it.

    In `other` it lies as it was before its bias was moved there.
    """
    folder = tmp_path_factory.mktemp("weak")
    checkpoint = save(Checkpoint(bert(num_labels=2)), folder / "checkpoint")
    export(str(checkpoint), attention="softmax", output=folder / "other")
    answers = logits(serve(folder / "other", check=False), pairs, {"keep": 1.0})
    model = load(checkpoint)
    model.classifier.bias.data[1] += float(np.quantile(answers[:, 0] - answers[:, 1], 0.1))
    model.save_pretrained(checkpoint)
    lines = [json.dumps({"text": text, "text_pair": pair}) for text, pair in pairs]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    for precision in ("fp32", "int8"):
        export(str(checkpoint), attention="softmax", output=folder / precision, precision=precision)
    return folder


@pytest.fixture(scope="module")
def calibrated(folder: Path) -> Path:
    """The int8 bundle after a calibration."""
    bundle = folder / "calibrated"
    shutil.copytree(folder / "int8", bundle)
    code, output, errors = command(
        "calibrate", bundle, "--data", folder / "texts.jsonl", "--reference", folder / "fp32", "--min-agreement", "0.9"
    )
    busy = "the machine was busy"  # said where other tests run beside this one
    assert (code, [line for line in errors.splitlines() if busy not in line]) == (0, [])
    assert "Agreement is with the exact answers of the fp32 bundle" in output
    return bundle


def kept(folder: Path, pairs: list[list[str]], knobs: Mapping[str, float]) -> np.ndarray:
    """Which answers of the int8 bundle have the label of the fp32 one's exact answer; bool `[pairs]`."""
    exact, rounded = (serve(folder / name, check=False) for name in ("fp32", "int8"))
    same = logits(exact, pairs, {"keep": 1.0}).argmax(axis=1) == logits(rounded, pairs, knobs).argmax(axis=1)
    return np.asarray(same)


def test_agreement_is_with_the_answers_in_fp32(calibrated: Path, folder: Path, pairs: list[list[str]]) -> None:
    calibration = serve(calibrated).calibration
    assert calibration is not None
    assert calibration.reference == serve(folder / "fp32", check=False).manifest.revision
    for setting in calibration.settings:
        successes = sum(row.successes for row in setting.agreement)
        assert successes == kept(folder, pairs, setting.knobs).sum()
    assert 0.9 < calibration.settings[0].agreement[0].value < 0.99, "rounding moves labels of this model"


@pytest.mark.parametrize(
    ("more", "goals"),
    [([], ["0.999", "1"]), (["--escalate"], ["0.999"]), (["--escalate", "--keep", "0.5"], ["1"])],
    ids=["alone", "escalate", "escalate-keep"],
)
def test_a_goal_above_what_rounding_keeps_is_refused(calibrated: Path, more: list[str], goals: list[str]) -> None:
    words = ["classify", "--bundle", calibrated, "the quick fox", "--json", *more, "--min-agreement"]
    for goal in goals:
        code, _, errors = command(*words, goal)
        assert code == 1
        assert re.search(r"is above what this bundle's rounding is shown to keep: .* of \d+ answers", errors)
    code, output, _ = command(*words, "0.8")
    assert code == 0
    assert json.loads(output).get("expected_agreement", 0) < 1, "known of measured knobs"


def test_the_table_has_no_setting_for_a_goal_above_what_rounding_keeps(calibrated: Path) -> None:
    assert " -" in command("inspect", calibrated)[1].split("Calibration:")[1]


def test_what_sets_nothing_runs_at_the_default_goal_and_expects_the_answers_in_fp32(
    calibrated: Path, tmp_path: Path
) -> None:
    calibration = serve(calibrated).calibration
    assert calibration is not None
    assert calibration.default_agreement == 0.9
    exact, cheaper = calibration.settings[0], calibration.frontier(0)[-1]
    for goal in (0.9, 1.0):
        folder = Path(shutil.copytree(calibrated, tmp_path / str(goal)))
        stated = calibration.model_copy(update={"default_agreement": goal})
        (folder / CALIBRATION).write_text(stated.model_dump_json())
        code, output, _ = command("classify", "--bundle", folder, "the quick fox", "--json")
        assert code == 0
        answer, usual = json.loads(output), default_setting(stated, 5)
        assert (answer["knobs"], answer["chosen_by"]) == (usual.knobs, "default")
        assert answer["expected_agreement"] == usual.agreement[0].value < 1
        assert usual == exact if goal == 1 else usual.agreement[0].value >= goal
    assert cheaper != exact, "there was something to choose"


def test_how_sure_an_exact_answer_is_counts_the_rounding(
    calibrated: Path, folder: Path, pairs: list[list[str]]
) -> None:
    model = serve(calibrated)
    judge, exact = judge_of(model), model.knobs.exact()
    probabilities = np.array([judge.probability(row, exact, 20) for row in logits(model, pairs, exact)])
    same = kept(folder, pairs, exact)
    assert probabilities.max() < 1
    assert probabilities.mean() == pytest.approx(same.mean(), abs=0.03)
    assert probabilities[~same].mean() < probabilities[same].mean() - 0.1
    assert judge_of(serve(folder / "int8")).probability(np.array([1.0, 0.0]), exact, 20) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["int8"], "int8 is int8, and agreement is with the checkpoint's exact answers in fp32: export"),
        (["int8", "--reference", "int8"], "int8 is int8, must be a bundle in fp32"),
        (["fp32", "--reference", "fp32"], "fp32 is fp32, its own exact answers are the reference: leave --reference"),
    ],
)
def test_what_cannot_be_the_reference_is_refused(words: list[str], sentence: str, folder: Path) -> None:
    paths = [folder / word if word in ("int8", "fp32") else word for word in words]
    code, _, errors = command("calibrate", *paths, "--data", folder / "texts.jsonl")
    assert code == 1
    assert sentence in errors


def test_a_bundle_of_another_checkpoint_is_no_reference(folder: Path) -> None:
    words = ["--data", folder / "texts.jsonl", "--reference", folder / "other"]
    code, _, errors = command("calibrate", folder / "int8", *words)
    assert code == 1
    assert "holds other weights or labels" in errors
    assert f"export '{read_manifest(folder / 'int8').provenance.source}'" in errors, "what to do"


def test_a_calibration_against_the_bundles_own_answers_counts_as_none(calibrated: Path, tmp_path: Path) -> None:
    """Earlier versions wrote such ones for int8; the bundle loads, and goals say what it takes."""
    old = Path(shutil.copytree(calibrated, tmp_path / "old"))
    content = json.loads((old / CALIBRATION).read_text())
    del content["reference"]
    (old / CALIBRATION).write_text(json.dumps(content))
    assert serve(old).calibration is None
    code, _, errors = command("classify", "--bundle", old, "the quick fox", "--min-agreement", "0.8")
    assert code == 1
    assert (
        "run 'attenuator calibrate' on its bundle with --reference, a bundle of the same checkpoint in fp32" in errors
    )


def test_texts_choose_a_default_by_the_answers_in_fp32(folder: Path, pairs: list[list[str]], tmp_path: Path) -> None:
    source, texts = str(folder / "checkpoint"), folder / "texts.jsonl"
    options: dict[str, Any] = {"precision": "int8", "texts": texts, "merge": "none"}
    manifest = export(source, attention="softmax", output=tmp_path / "bundle", **options)
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert chosen.share == 1, "what rounding changes is more than a default may change"
    assert chosen.agreement == pytest.approx(kept(folder, pairs, {"keep": 1.0}).mean())
