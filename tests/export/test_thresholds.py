"""Thresholds of multi-label models: given by order or by name, or fitted on labelled texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TEXTS, reference
from refusals import refuse
from sklearn.metrics import f1_score
from tokenizers import Tokenizer

from attenuator.__main__ import main
from attenuator.bundle import Manifest, read_manifest
from attenuator.errors import ExportError, InvalidRequest
from attenuator.export import labelled, thresholds
from attenuator.export.source import load as load_source
from attenuator.runtime import Row, load
from attenuator.runtime.scores import sigmoid

Get = Callable[..., Path]
LABELS = [f"LABEL_{index}" for index in range(5)]
WORDS = sorted({word for text in TEXTS for word in text.split()})


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


@pytest.fixture
def command(checkpoint: Get, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exports the multi-label checkpoint to `tmp_path / "bundle"`: exit code, standard output and error."""

    def run(*arguments: str, name: str = "bert-multi-label") -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(
                [
                    "export",
                    str(checkpoint(name)),
                    "--attention",
                    "softmax",
                    "--output",
                    str(tmp_path / "bundle"),
                    *arguments,
                ]
            )
        except SystemExit as end:
            code = int(end.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_has_a_larger_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = random.random(57) < random.uniform(0.1, 0.9)
    truth[0] = True
    scores = np.clip(random.normal(0.3 + 0.2 * truth, 0.2), 0, 1)
    if seed % 2:
        scores = np.round(scores, 1)  # many equal ones
    threshold = thresholds.best_threshold(scores, truth)
    best = max(f1_score(truth, scores >= low) for low in scores)
    assert f1_score(truth, scores >= threshold) == pytest.approx(best)
    assert thresholds.f1(scores >= threshold, truth) == pytest.approx(best)
    assert 0 <= threshold <= 1


def test_threshold_lies_between_scores_in_few_decimals_and_near_a_half() -> None:
    truth = np.array([True] * 3 + [False] * 3)
    assert thresholds.best_threshold(np.array([0.9, 0.8, 0.7123, 0.2, 0.1, 0.1]), truth) == 0.46
    assert thresholds.best_threshold(np.array([0.9, 0.8, 0.61004, 0.61002, 0.1, 0.1]), truth) == 0.61003
    # All alike: the label goes to all texts or to none.
    assert thresholds.best_threshold(np.full(6, 0.3), truth) <= 0.3
    assert thresholds.best_threshold(np.zeros(6), truth) == 0
    nearest = np.nextafter(0.7, 1)
    assert thresholds.best_threshold(np.array([nearest, nearest, nearest, 0.7, 0.7, 0.7]), truth) == nearest
    # Choosing one or all three gives the same F1: the one closest to a half is taken.
    tied = thresholds.best_threshold(np.array([0.9, 0.4, 0.39, 0.38]), np.array([True, False, False, True]))
    assert tied == 0.65


def test_labels_with_few_texts_keep_a_half_and_are_named() -> None:
    random = np.random.default_rng(0)
    truth = random.random((40, 4)) < 0.5
    truth[:, 1] = np.arange(40) < 9  # nine have it
    truth[:, 2] = np.arange(40) < 31  # nine lack it
    truth[:, 3] = np.arange(40) < 10
    scores = np.clip(random.normal(0.2 + 0.1 * truth, 0.05), 0, 1)
    notes: list[str] = []
    fitted = thresholds.fit(scores, truth, ["a", "b", "c", "d"], notes.append)
    assert fitted[1:3] == [0.5, 0.5]
    assert fitted[0] < 0.4
    assert fitted[3] < 0.4
    assert "thresholds are fitted on 40 texts for 2 of 4 labels: their mean F1 there rises from 0.000 to" in notes[0]
    assert notes[1] == (
        "thresholds stay 0.5 for 2 of 4 labels, which fewer than 10 of 40 texts have, or lack: 'b' (9), 'c' (31)"
    )
    assert len(notes) == 2
    notes.clear()
    assert thresholds.fit(scores[:5], truth[:5], ["a", "b", "c", "d"], notes.append) == [0.5] * 4
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("flag_value", "expected"),
    [
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]),
        ((0, 1, 0.5), [0.0, 1.0, 0.5]),
        ({"b": 0.25}, [0.5, 0.25, 0.5]),
        ({}, [0.5] * 3),
    ],
)
def test_thresholds_by_order_and_by_label(flag_value: Any, expected: list[float]) -> None:
    assert thresholds.by_label(flag_value, ["a", "b", "c"]) == expected


@pytest.mark.parametrize(
    ("flag_value", "sentence"),
    [
        ([0.1, 0.2], "thresholds has 2 values, must have 3, one for each label: a, b, c"),
        ([], "thresholds has 0 values, must have 3"),
        ([0.1, 1.5, 0.2], "the threshold of label 'b' is 1.5, must be a number from 0 to 1"),
        ([0.1, -0.1, 0.2], "the threshold of label 'b' is -0.1"),
        ([float("nan"), 0.1, 0.2], "the threshold of label 'a' is nan"),
        ([True, 0.1, 0.2], "the threshold of label 'a' is true"),
        (["0.1", 0.1, 0.2], "the threshold of label 'a' is a text"),
        ({"a": None}, "the threshold of label 'a' is null"),
        ({"A": 0.3}, "thresholds names the label 'A', must be one of the model's: a, b, c"),
    ],
    ids=["few", "none", "above", "below", "nan", "boolean", "text", "null", "unknown"],
)
def test_thresholds_that_do_not_fit(flag_value: Any, sentence: str) -> None:
    with pytest.raises(ExportError) as caught:
        thresholds.by_label(flag_value, ["a", "b", "c"])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("0.5", "is 0.5, must be a list of thresholds or an object"),
        ("{", "cannot be read: Expecting property name"),
        ("[" * 100_000, "cannot be read: "),
        (None, "cannot be read: No such file"),
    ],
    ids=["number", "cut off", "deep", "missing"],
)
def test_files_of_thresholds_that_cannot_be_used(content: str | None, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ExportError) as caught:
        thresholds.read(str(path))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (None, "line 1 has no labels, must have a list of label names"),
        ("a", "line 1 has labels that are a text, must have a list"),
        (["a", "z"], "line 1 has the label 'z', must be one of the model's: a, b"),
        ([["a"]], "line 1 has the label a list, must be"),
        ([2], "line 1 has the label 2, must be"),
    ],
)
def test_labels_of_a_line_that_do_not_fit(labels: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        labelled.matrix_of([("line 1", labels)], ["a", "b"])
    assert sentence in str(caught.value)


def test_given_thresholds_reach_the_bundle_and_decide_its_answers(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "thresholds.json"
    path.write_text(json.dumps({"LABEL_3": 0, "LABEL_0": 1}))
    assert command("--thresholds", str(path))[0] == 0
    manifest = read_manifest(tmp_path / "bundle")
    assert manifest.thresholds == [1, 0.5, 0.5, 0, 0.5]
    model = load(tmp_path / "bundle", check=False)
    encoded = model.encode("a film so bad")
    [result] = model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.exact())])
    labels = model.predict(result.logits).labels
    assert labels is not None
    assert "LABEL_3" in labels
    assert "LABEL_0" not in labels
    assert main(["inspect", str(tmp_path / "bundle")]) == 0


@pytest.mark.parametrize(
    ("name", "arguments", "code", "sentence"),
    [
        ("bert-multi-label", ["--thresholds", "0.1,x"], 2, "thresholds is '0.1,x', must be numbers from 0 to 1"),
        ("bert-multi-label", ["--thresholds", "0.1,0.2"], 1, "thresholds has 2 values, must have 5"),
        ("bert-regression", ["--thresholds", "0.1"], 1, "the model's task is regression: only multi-label models"),
        ("bert-multi-label", ["--thresholds", "0.1", "--fit-thresholds", "x"], 1, "are both set, must be one of them"),
        ("bert-multi-label", ["--fit-thresholds", "nowhere.jsonl"], 1, "nowhere.jsonl cannot be read: No such file"),
    ],
    ids=["word", "few", "regression", "both", "missing"],
)
def test_wrong_options(
    name: str,
    arguments: list[str],
    code: int,
    sentence: str,
    command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
) -> None:
    ended, out, error = command(*arguments, name=name)
    assert (ended, out) == (code, "")
    assert sentence in error
    assert not (tmp_path / "bundle").exists()


def test_fitting_is_for_multi_label_models(checkpoint: Get, tmp_path: Path) -> None:
    sentence = refuse(checkpoint("bert"), tmp_path, fit_thresholds="texts.jsonl")
    assert "fit_thresholds is set, but the model's task is single_label: only multi-label models" in sentence


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([], "is empty, must have a JSON object with text and labels on each line"),
        ([{"text": "a"}], "line 1 has no labels"),
        ([{"text": "a", "labels": []}, {"text": 7, "labels": []}], "line 2.text is 7, must be a text"),
        ([{"text": " ", "labels": []}], "line 1.text is empty"),
        ([{"labels": []}], "line 1 has none of these fields, must be an object with text"),
    ],
    ids=["empty", "no labels", "number", "blank", "no text"],
)
def test_labelled_texts_that_cannot_be_used(records: list[Any], sentence: str, checkpoint: Get, tmp_path: Path) -> None:
    source = load_source(str(checkpoint("bert-multi-label")))
    manifest = Manifest.model_construct(
        task="multi_label",
        labels=LABELS,
        inputs=[],
        max_tokens=70,
        vocab_size=source.vocab_size,
        truncation_side="right",
        split_special_tokens=False,
    )
    tokenizer = checkpoint("bert-multi-label") / "tokenizer.json"
    path = write(tmp_path / "texts.jsonl", records)
    with pytest.raises(InvalidRequest) as caught:
        labelled.fit_thresholds(path, source, manifest, tokenizer, print)
    assert f"{path} {sentence}" in str(caught.value)


def test_fitted_thresholds_separate_the_labels_that_the_bundle_gives(
    command: Callable[..., tuple[int, str, str]], checkpoint: Get, tmp_path: Path
) -> None:
    """Labels follow from the model's own scores, on both sides of a wide gap, so that a threshold separates them."""
    eager = reference(checkpoint("bert-multi-label"))
    random = np.random.default_rng(2)
    texts = [" ".join(random.choice(WORDS, random.integers(2, 9))) for _ in range(60)]
    tokenizer = Tokenizer.from_file(str(checkpoint("bert-multi-label") / "tokenizer.json"))
    encoded = [tokenizer.encode(text) for text in texts]
    scores = sigmoid(np.stack([eager(np.array(one.ids), np.array(one.type_ids)) for one in encoded]))
    ordered = np.sort(scores, axis=0)
    below = 12 + np.diff(ordered[12:48], axis=0).argmax(axis=0)
    below[4] = 56  # the last label has 3 texts
    truth = scores > ordered[below, range(5)]
    records = [
        {"text": text, "labels": [label for label, has in zip(LABELS, row, strict=True) if has]}
        for text, row in zip(texts, truth, strict=True)
    ]
    code, out, error = command("--fit-thresholds", str(write(tmp_path / "texts.jsonl", records)))
    assert code == 0, error
    model = load(tmp_path / "bundle", check=False)
    results = model.run([Row(np.array(one.ids), np.array(one.type_ids), model.knobs.exact()) for one in encoded])
    for result, record in zip(results, records, strict=True):
        assert set(model.predict(result.logits).labels or ()) - {"LABEL_4"} == set(record["labels"]) - {"LABEL_4"}
    assert model.manifest.thresholds[4] == 0.5
    assert "thresholds are fitted on 60 texts for 4 of 5 labels" in out
    assert "to 1.000; measure on other texts" in out
    assert "stay 0.5 for 1 of 5 labels, which fewer than 10 of 60 texts have, or lack: 'LABEL_4' (3)" in out
