"""What cannot be exported is refused in one sentence that says why, and leaves nothing behind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import MODERN, SMALL, VOCAB, bert, word_tokenizer
from refusals import edit, refuse, save
from safetensors.torch import load_file, save_file

from attenuator.errors import ExportError
from attenuator.export import export

Get = Callable[[str], Path]


@pytest.mark.parametrize(
    ("name", "attention", "sentence"),
    [
        ("bert", "yoso", "the model was trained with softmax attention, which attention 'yoso' does not compute"),
        ("yoso", "mca", "the model was trained with yoso attention, which attention 'mca' does not compute; use yoso"),
        ("yoso", "softmax", "trained with yoso attention"),
        ("encoder-yoso", "mca", "trained with yoso attention"),
        ("encoder-yoso", "softmax", "trained with yoso attention"),
        ("encoder-softmax", "yoso", "trained with softmax attention"),
        ("modernbert", "yoso", "use softmax or mca"),
        (
            "deberta-v2",
            "mca",
            "the model was trained with relative attention, which attention 'mca' does not compute; ",
        ),
        ("mpnet", "mca", "attention 'mca' does not compute; use softmax"),
        ("mpnet", "relative", "attention is 'relative', must be one of: softmax, mca, yoso"),
        ("bert", "nonsense", "attention is 'nonsense', must be one of: softmax, mca, yoso"),
        ("bert", "pool", "attention is 'pool', must be one of"),
    ],
)
def test_attention_that_the_model_was_not_trained_with(
    name: str, attention: str, sentence: str, checkpoint: Get, tmp_path: Path
) -> None:
    assert sentence in refuse(checkpoint(name), tmp_path, attention)


@pytest.mark.parametrize(
    ("name", "attention", "options", "sentence"),
    [
        ("bert", "mca", {"max_tokens": 71}, "max_tokens is 71, must be from 1 to 70"),
        ("bert", "mca", {"max_tokens": 0}, "max_tokens is 0, must be from 1 to 70"),
        ("roberta", "mca", {"max_tokens": 69}, "must be from 1 to 68"),
        ("bert", "softmax", {"estimator": "paper"}, "estimator is 'paper', but attention 'softmax' has none"),
        ("bert", "mca", {"table_precision": "int16"}, "table_precision is 'int16', but attention 'mca' has none"),
        ("bert", "mca", {"estimator": "exact"}, "estimator is 'exact', must be one of: sampled, deterministic, paper"),
        ("bert", "mca", {"knob_default": {"alpha": 1.5}}, "the default of alpha is 1.5, must be a number from 0 to 1"),
        ("yoso", "yoso", {"knob_default": 2.5}, "the default of num_hashes is 2.5"),
        ("bert-one-layer", "softmax", {"knob_default": 1}, "this bundle has no knob"),
        ("bert", "mca", {"knob_default": 0.5}, "must name the knob that it is for: keep or alpha"),
        ("bert", "softmax", {"knob_default": 0.01}, "the default of keep is 0.01, must be a number from 0.05 to 1"),
        (
            "bert",
            "softmax",
            {"schedule": "none", "knob_default": {"keep": 0.5}},
            "must be a knob of this bundle: it has none",
        ),
        (
            "bert",
            "softmax",
            {"schedule": "steep"},
            "schedule is 'steep', must be one of: rising, geometric, first, early, second, middle, halving, none",
        ),
        ("bert", "softmax", {"schedule": "none", "texts": "x.txt"}, "this bundle selects no tokens"),
        (
            "bert-one-layer",
            "softmax",
            {"schedule": "first"},
            "schedule is 'first', but this bundle selects no tokens: it has one layer, which computes the first token "
            "alone; must be none",
        ),
        ("yoso", "yoso", {"schedule": "rising"}, "its attention has a convolution over neighbouring rows"),
        ("yoso", "yoso", {"texts": "x.txt"}, "this bundle selects no tokens"),
        ("bert", "softmax", {"texts": "nowhere.txt"}, "nowhere.txt cannot be read"),
        (
            "bert",
            "mca",
            {"knob_default": {"num_hashes": 8}},
            "names the knob 'num_hashes', must be a knob of this bundle: keep or alpha",
        ),
        ("bert", "mca", {"name": "a b"}, "name"),
        ("bert", "mca", {"precision": "int4"}, "precision is 'int4', must be one of: fp32, int8, fp16, bf16"),
    ],
)
def test_options(
    name: str, attention: str, options: dict[str, Any], sentence: str, checkpoint: Get, tmp_path: Path
) -> None:
    assert sentence in refuse(checkpoint(name), tmp_path, attention, **options)


def test_unsupported_family_names_those_that_are(tmp_path: Path) -> None:
    config = transformers.RoFormerConfig(**SMALL)
    sentence = refuse(save(transformers.RoFormerForSequenceClassification(config), tmp_path / "other"), tmp_path)
    assert "'roformer'" in sentence
    for family in (
        "mpnet",
        "deberta-v2",
        "bert",
        "roberta",
        "distilbert",
        "electra",
        "albert",
        "modernbert",
        "yoso",
        "attenuator-encoder",
    ):
        assert family in sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"is_decoder": True}, "is a decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        (
            {"architectures": ["BertForMaskedLM"]},
            "is a BertForMaskedLM, must be a sequence classifier (BertForSequenceClassification) or a token",
        ),
        ({"architectures": ["BertModel"]}, ": embedding is not supported"),
        ({"architectures": ["RobertaForSequenceClassification"]}, "is a RobertaForSequenceClassification, must be"),
        ({"architectures": ["MeanForSequenceClassification"]}, "give FILE.py:NAME"),
        ({"auto_map": {"AutoModelForSequenceClassification": "modeling_mean.Mean"}}, "auto_map in config.json"),
        ({"problem_type": "regression"}, "the model is a regression with 3 outputs, must have one"),
        ({"hidden_size": 64}, "hidden_size asks for 64, but bert.embeddings.LayerNorm.bias has 32"),
        ({"num_hidden_layers": 3}, "no trained weights for bert.encoder.layer.2"),
        ({"model_type": None}, "model family 'None'"),
        ({"model_type": "reformer"}, "model family 'reformer' cannot be exported: its hashed layers draw"),
        ({"id2label": {"0": "same", "1": "same", "2": "other"}}, "labels must be 3 different names"),
    ],
)
def test_configs_that_do_not_fit(changes: dict[str, Any], sentence: str, checkpoint: Get, tmp_path: Path) -> None:
    assert sentence in refuse(edit(checkpoint("bert"), tmp_path / "edited", **changes), tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hash_code_len": 17}, "hash_code_len is 17, must be in [1, 16]"),
        ({"conv_window": 4}, "conv_window is 4, must be odd"),
    ],
)
def test_yoso_configs_that_do_not_fit(changes: dict[str, Any], sentence: str, checkpoint: Get, tmp_path: Path) -> None:
    assert sentence in refuse(edit(checkpoint("yoso"), tmp_path / "edited", **changes), tmp_path, "yoso")


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("mpnet", {"relative_attention_num_buckets": 31}, "relative_attention_num_buckets is 31, must be at least 32"),
        ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size is 4, must be odd"),
        ("deberta", {"talking_head": True}, "talking_head is true, must be false"),
    ],
)
def test_configs_of_distances_that_do_not_fit(
    name: str, changes: dict[str, Any], sentence: str, checkpoint: Get, tmp_path: Path
) -> None:
    assert sentence in refuse(edit(checkpoint(name), tmp_path / "edited", **changes), tmp_path, "softmax")


def test_rotary_positions_that_depend_on_the_batch(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    config = transformers.ModernBertConfig(
        **MODERN, rope_parameters={"full_attention": rope, "sliding_attention": rope}
    )
    folder = save(transformers.ModernBertForSequenceClassification(config), tmp_path / "rope")
    assert "rope_type is 'dynamic'" in refuse(folder, tmp_path)


def test_weights_without_a_trained_head(checkpoint: Get, tmp_path: Path) -> None:
    folder = save(transformers.BertModel(bert()), tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": None}))
    sentence = refuse(folder, tmp_path)
    assert "no trained weights for classifier" in sentence
    assert "fine-tuned classifier" in sentence


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"damaged"), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer of"),
    ],
    ids=["no-config", "bad-config", "list-config", "no-weights", "bad-weights", "no-tokenizer", "bad-tokenizer"],
)
@pytest.mark.parametrize("name", ["bert", "encoder-softmax"])
def test_damaged_checkpoints(
    name: str, damage: Callable[[Path], Any], sentence: str, checkpoint: Get, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(checkpoint(name), folder)
    damage(folder)
    assert sentence in refuse(folder, tmp_path)


def test_weights_that_could_run_code(checkpoint: Get, tmp_path: Path) -> None:
    """The refusal does not pass on PyTorch's advice to load them all the same."""
    folder = tmp_path / "pickled"
    shutil.copytree(checkpoint("bert"), folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Path("/")}, folder / "pytorch_model.bin")
    sentence = refuse(folder, tmp_path)
    assert "a pickle that is damaged or holds more than tensors, which is not read, since it could run code" in sentence
    assert "weights_only" not in sentence


def test_tokenizer_with_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    model = transformers.BertForSequenceClassification(bert(vocab_size=40))
    size = word_tokenizer().get_vocab_size()
    sentence = refuse(save(model, tmp_path / "small"), tmp_path)
    assert f"token id {size - 1}, must be below the model's vocab_size 40" in sentence


def test_heads_that_the_operators_do_not_take(tmp_path: Path) -> None:
    folder = save(transformers.BertForSequenceClassification(bert(num_attention_heads=8)), tmp_path / "narrow")
    assert "McaAttention: key has head_dim 4, must be in [8, 256]" in refuse(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "weight", "value"),
    [
        ("bert", "classifier.weight", "nan"),
        ("bert", "bert.embeddings.word_embeddings.weight", "inf"),
        ("encoder-softmax", "classifier.weight", "-inf"),
    ],
)
def test_weights_that_are_not_numbers(name: str, weight: str, value: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint(name), tmp_path / "edited")
    weights = load_file(folder / "model.safetensors")
    weights[weight][-1, 0] = float(value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert f"the weight {weight} has values that are NaN or infinite" in refuse(folder, tmp_path)


def test_a_folder_that_is_not_a_bundle_is_left_alone(checkpoint: Get, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="is a folder that is not a bundle"):
        export(str(checkpoint("bert")), attention="mca", output=tmp_path)
    with pytest.raises(ExportError, match="is a file"):
        export(str(checkpoint("bert")), attention="mca", output=tmp_path / "notes.txt")
    with pytest.raises(ExportError, match=r"notes.txt/inside' cannot be written: "):
        export(str(checkpoint("bert")), attention="mca", output=tmp_path / "notes.txt" / "inside")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("text", "function", "sentence"),
    [
        ("def load(): return 1", "load", "must return (model, tokenizer, labels)"),
        ("def load(): return 1, 2, 3", "load", "gives a int, must be a transformers model"),
        ("def load(): raise ValueError('no\\nweights')", "load", "mine.py:load failed: ValueError: no weights"),
        ("import nowhere_at_all", "load", "importing"),
        ("x = 1", "load", "has no function 'load'"),
    ],
)
def test_functions_that_give_no_model(text: str, function: str, sentence: str, tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text(text)
    assert sentence in refuse(f"{module}:{function}", tmp_path)


@pytest.mark.parametrize("source", ["bert-base-uncased", "nowhere/at/all", "nowhere.py:load"])
def test_sources_that_do_not_exist(source: str, tmp_path: Path) -> None:
    sentence = refuse(source, tmp_path)
    assert "is not a folder" in sentence or "does not exist" in sentence


def test_vocabulary_of_the_tests_fits() -> None:
    assert np.max(list(word_tokenizer().get_vocab().values())) < VOCAB
