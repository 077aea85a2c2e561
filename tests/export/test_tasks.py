"""Regressions and cross-encoders: one output, answered as it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, reference

from attenuator.__main__ import main
from attenuator.bundle import read_manifest
from attenuator.errors import ExportError
from attenuator.export.__main__ import summary
from attenuator.export.settings import ExportSettings
from attenuator.export.source import load as load_source
from attenuator.export.source import score_activation, task_of
from attenuator.runtime import Row, load

Get = Callable[..., Path]


@pytest.mark.parametrize(
    ("name", "attention", "labels", "activation"),
    [("bert-regression", "mca", ["similarity"], "Sigmoid"), ("roberta-regression", "softmax", ["LABEL_0"], "")],
)
def test_the_bundle_names_its_score(
    name: str, attention: str, labels: list[str], activation: str, exported: Get
) -> None:
    manifest = read_manifest(exported(name, attention))
    assert (manifest.task, manifest.labels, manifest.thresholds) == ("regression", labels, [])
    assert manifest.provenance.activation == activation
    assert manifest.provenance.parity["agreement"] == 1


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_pair_gets_the_score_that_transformers_computes(precision: str, exported: Get, checkpoint: Get) -> None:
    model = load(exported("bert-regression", "mca", precision))
    eager = reference(checkpoint("bert-regression"))
    pairs = [("a film so bad", "it is good"), ("the quick fox", "42 tokens"), ("spaces", "the lazy dog jumps over")]
    encoded = [model.encode(*pair) for pair in pairs]
    assert all(item.type_ids.any() for item in encoded)
    results = model.run([Row(item.token_ids, item.type_ids, model.knobs.exact()) for item in encoded])
    answers = [model.predict(result.logits) for result in results]
    expected = [float(eager(item.token_ids, item.type_ids)[0]) for item in encoded]
    assert [answer.label for answer in answers] == ["similarity"] * 3
    tolerance = {"fp32": 1e-4, "int8": 0.1}[precision] * max(map(abs, expected))
    np.testing.assert_allclose([answer.score for answer in answers], expected, rtol=0, atol=tolerance)


def test_a_single_output_is_a_regression_unless_it_is_a_class_of_its_own(checkpoint: Get) -> None:
    config = CHECKPOINTS["bert"].config.__class__(num_labels=1)
    assert task_of(config) == "regression"
    config.problem_type = "multi_label_classification"
    assert task_of(config) == "multi_label"


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, ""),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "Tanh"),
        ({"sentence_transformers": {"version": "5.0"}}, ""),
        ({"sentence_transformers": "Sigmoid"}, ""),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "Sigmoid"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, ""),
        ({"sbert_ce_default_activation_function": "a.b\x1b[31m"}, ""),
        ({"sbert_ce_default_activation_function": 7}, ""),
    ],
)
def test_activation_of_sentence_transformers_is_recorded(fields: dict[str, object], activation: str) -> None:
    assert score_activation(CHECKPOINTS["bert"].config.__class__(**fields)) == activation


def test_export_and_inspect_say_what_answers_hold(exported: Get, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported("bert-regression", "mca", "int8")
    text = summary(read_manifest(folder), ExportSettings(attention="mca", output=folder))
    assert "one score, 'similarity' (regression), up to 70 tokens" in text
    assert "sentence-transformers applies Sigmoid to the score; answers hold the score before it" in text
    assert "of the compared inputs keep their score within 0.1 standard deviations" in text
    assert main(["inspect", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "regression; sentence-transformers applies Sigmoid to the score" in shown
    assert "score similarity" in shown


def cross_encoder(folder: Path, checkpoint: Path, **fields: object) -> Path:
    """A checkpoint as a CrossEncoder of sentence-transformers 6 saves it."""
    shutil.copytree(checkpoint, folder)
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.Transformer"}]
    about = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "default_prompt_name": None} | fields
    files = {
        "modules.json": about.pop("modules", modules),
        "config_sentence_transformers.json": {"model_type": "CrossEncoder", "prompts": {}} | about,
        "sentence_bert_config.json": {"transformer_task": "sequence-classification", "module_output_name": "scores"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("activation", "recorded"), [("activation.Sigmoid", "Sigmoid"), ("linear.Identity", "")], ids=["sigmoid", "plain"]
)
def test_a_cross_encoder_in_its_new_layout(checkpoint: Get, tmp_path: Path, activation: str, recorded: str) -> None:
    """The file beside the model says it, whatever an older release left in the model's own config."""
    folder = cross_encoder(
        tmp_path / "new", checkpoint("bert-regression"), activation_fn=f"torch.nn.modules.{activation}"
    )
    source = load_source(str(folder))
    assert (source.task, source.labels, source.activation) == ("regression", ["similarity"], recorded)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model_type": "SentenceTransformer"}, "embedding is not supported"),
        (
            {"modules": [{"type": "a.Transformer"}, {"type": "a.Dense"}]},
            "has the modules Transformer, Dense in",
        ),
        ({"default_prompt_name": "query"}, "puts its prompt 'query' before each text, which a bundle does not"),
    ],
    ids=["embedding", "modules", "prompt"],
)
def test_what_sentence_transformers_would_compute_besides_is_refused(
    checkpoint: Get, tmp_path: Path, fields: dict[str, object], sentence: str
) -> None:
    folder = cross_encoder(tmp_path / "new", checkpoint("bert-regression"), **fields)
    config = json.loads((folder / "config.json").read_text())
    if "model_type" in fields:
        config["architectures"] = ["BertModel"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=sentence):
        load_source(str(folder))
