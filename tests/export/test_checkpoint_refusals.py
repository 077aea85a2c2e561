"""Checkpoint folders whose files do not belong together are refused in one sentence that says what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, bert, reference
from refusals import edit, refuse, save
from safetensors.torch import load_file, save_file

from attenuator.export import export
from attenuator.export.families import FAMILIES
from attenuator.export.source import load

Get = Callable[[str], Path]


@pytest.mark.parametrize("family", [row.model_type for row in FAMILIES])
@pytest.mark.parametrize("files", [[], ["tokenizer_config.json"], ["vocab.json"]], ids=["nothing", "config", "half"])
def test_a_folder_without_a_tokenizer(family: str, files: list[str], checkpoint: Get, tmp_path: Path) -> None:
    name = next(name for name, row in CHECKPOINTS.items() if row.config.model_type == family)
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(checkpoint(name) / "config.json", folder)  # weights are not looked at before
    for file in files:
        (folder / file).write_text('{"a": 0}' if file == "vocab.json" else '{"model_max_length": 64}')
    sentence = refuse(folder, tmp_path)
    assert "has no tokenizer (none of tokenizer.json" in sentence
    assert sentence.endswith("into the folder: tokenizer.save_pretrained(folder)")


def test_a_config_that_transformers_refuses(checkpoint: Get, tmp_path: Path) -> None:
    """Of a Nystromformer without a convolution, say: transformers wants a number, also where it loads a tokenizer."""
    folder = edit(checkpoint("nystromformer"), tmp_path / "other", conv_kernel_size=None)
    sentence = refuse(folder, tmp_path)
    assert "config.json cannot be read" in sentence
    assert "'conv_kernel_size' expected int, got NoneType" in sentence
    assert "tokenizer" not in sentence


def test_a_tokenizer_of_special_tokens_alone(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("roberta"), tmp_path / "other")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.txt").write_text("a\nb\n")  # RoBERTa's tokenizer does not read it, and invents one
    assert "knows its 5 special tokens and no word; save the one it was trained with" in refuse(folder, tmp_path)


@pytest.mark.parametrize("whole", [True, False])
def test_an_adapter_gets_a_hint_to_merge(whole: bool, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "adapter")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    if not whole:
        (folder / "config.json").unlink()
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "merge the adapter into its base model with peft's merge_and_unload()" in refuse(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("bert", {"vocab_size": 97}, "vocab_size asks for 97, but bert.embeddings.word_embeddings.weight has 96"),
        ("modernbert", {"vocab_size": 97}, "vocab_size asks for 97, but model.embeddings.tok_embeddings.weight has 96"),
        (
            "roberta",
            {"max_position_embeddings": 80},
            "max_position_embeddings asks for 80, but roberta.embeddings.position_embeddings.weight has 70",
        ),
        ("bert", {"type_vocab_size": 4}, "type_vocab_size asks for 4, but"),
        ("bert", {"intermediate_size": 41}, "intermediate_size asks for 41, but"),
        ("bert", {"id2label": None}, "id2label names 2 labels (2 where it is missing), but classifier.bias has 3"),
        ("bert", {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}, "id2label names 4 labels"),
        ("bert", {"num_hidden_layers": 1}, "with num_hidden_layers 1 the trained weight bert.encoder.layer.1."),
        ("modernbert", {"num_hidden_layers": 1, "layer_types": None}, "with num_hidden_layers 1 the trained weight"),
        ("distilbert", {"n_layers": 1}, "with num_hidden_layers 1 the trained weight distilbert.transformer.layer.1."),
        ("albert-groups", {"num_hidden_groups": 1}, "with num_hidden_groups 1 the trained weight"),
        ("encoder-softmax", {"vocab_size": 97}, "size mismatch for embeddings.weight"),
        ("encoder-softmax", {"num_hidden_layers": 1}, "Unexpected key(s) in state_dict"),
    ],
)
def test_a_config_of_another_model(
    name: str, changes: dict[str, Any], sentence: str, checkpoint: Get, tmp_path: Path
) -> None:
    message = refuse(edit(checkpoint(name), tmp_path / "edited", **changes), tmp_path)
    assert sentence in message
    assert "report" not in message


def test_weights_that_the_family_has_no_place_for(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "adapted")
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.1.attention.self.query.lora_A.weight"] = torch.ones(2, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "query.lora_A.weight has no place in a model of family 'bert'" in refuse(folder, tmp_path)


@pytest.mark.parametrize("file", ["modeling_mean.py", "tokenization_mean.py"])
def test_code_beside_the_weights_is_refused_and_never_run(file: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "own")
    (folder / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    sentence = refuse(folder, tmp_path)
    assert f"brings code of its own ({file}), which is never run" in sentence
    assert "give FILE.py:NAME" in sentence
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_of_its_own_code(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "own")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}))
    assert "auto_map in tokenizer_config.json" in refuse(folder, tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_weights_that_a_wrapper_of_training_renamed(prefix: str, name: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint(name), tmp_path / "wrapped")
    weights = load_file(folder / "model.safetensors")
    renamed = {prefix + key: value for key, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    model = load(str(folder)).model.state_dict()
    assert weights
    for key, value in weights.items():
        assert torch.equal(model[key], value)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_that_git_lfs_did_not_fetch(file: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "pointer")
    (folder / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 440473133\n")
    assert f"{file}' is a pointer of git-LFS and not the file itself" in refuse(folder, tmp_path)


@pytest.mark.parametrize("inside", ["checkpoint-500", "snapshots/0123abc"])
def test_a_folder_above_the_checkpoint_names_it(inside: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(checkpoint("bert"), folder / inside)
    assert f"config.json is missing; give the folder '{folder / inside}', which has one" in refuse(folder, tmp_path)


def test_a_folder_above_several_models_names_one(checkpoint: Get, tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    for name in ("models--a--b", "models--c--d"):
        shutil.copytree(checkpoint("bert"), cache / name / "snapshots" / "0123abc")
    for folder in (cache, tmp_path):
        sentence = refuse(folder, tmp_path / "exported")
        assert "give one of the 2 folders below that have one, such as" in sentence
        assert "snapshots/0123abc'" in sentence


@pytest.mark.parametrize("content", [b"", b"<html>log in first</html>", None], ids=["empty", "page", "half"])
def test_weights_that_did_not_arrive_whole(content: bytes | None, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "half")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content is None else content)
    assert "its weights are cut short or no safetensors file; fetch them again" in refuse(folder, tmp_path)


def test_weights_that_an_unknown_wrapper_renamed(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "wrapped")
    weights = load_file(folder / "model.safetensors")
    renamed = {"net." + key: value for key, value in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    assert "; it has net.bert.embeddings.LayerNorm.bias: save the model inside its wrapper" in refuse(folder, tmp_path)


def test_finite_weights_that_overflow(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "large")
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.0.intermediate.dense.weight"][0] = 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "answers NaN or infinity to some token ids" in refuse(folder, tmp_path)


def test_a_bundle_as_source(tmp_path: Path) -> None:
    bundle = Path(__file__).parents[2] / "examples" / "bundles" / "reviews-mca"
    assert "it is a bundle, which export writes; give the checkpoint" in refuse(bundle, tmp_path)


def test_labels_counted_from_one(checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "edited", id2label={"1": "a", "2": "b", "3": "c"})
    assert "id2label has the ids 1, 2, 3, must have every id from 0 to 2" in refuse(folder, tmp_path)


@pytest.mark.parametrize(
    ("label", "sentence"),
    [("\ud83d", "label 1 is '\\ud83d', half of a surrogate pair; must be Unicode"), (" ", "label 1 is ' ', must have")],
)
def test_labels_that_cannot_be_shown(label: str, sentence: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(checkpoint("bert"), tmp_path / "edited", id2label={"0": "a", "1": label, "2": "c"})
    assert sentence in refuse(folder, tmp_path)


def test_a_model_without_layers(tmp_path: Path) -> None:
    folder = save(transformers.BertForSequenceClassification(bert(num_hidden_layers=0)), tmp_path / "flat")
    assert "the model has no layers (num_hidden_layers is 0), must have at least 1" in refuse(folder, tmp_path)


@pytest.mark.parametrize(
    ("labels", "names", "sentence"),
    [
        ("numpy.array(['x', 'y', 'z'])", ["x", "y", "z"], None),
        ("numpy.arange(3)", ["0", "1", "2"], None),
        ("'xyz'", None, "labels is a str, must be a list of 3 names"),
        ("3", None, "labels is a int, must be a list of 3 names"),
        ("[]", None, "labels must be 3 different names, not []"),
    ],
)
def test_labels_of_a_function(
    labels: str, names: list[str] | None, sentence: str | None, checkpoint: Get, tmp_path: Path
) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import numpy, transformers\n"
        f"folder = {str(checkpoint('bert'))!r}\n"
        "def load():\n"
        "    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)\n"
        f"    return model, transformers.AutoTokenizer.from_pretrained(folder), {labels}\n"
    )
    if sentence is not None:
        assert sentence in refuse(f"{source}:load", tmp_path)
    else:
        assert load(f"{source}:load").labels == names


@pytest.mark.parametrize("name", ["bert", "modernbert-mean"])
def test_a_config_that_asks_for_tuples(name: str, checkpoint: Get, tmp_path: Path) -> None:
    folder = edit(
        checkpoint(name), tmp_path / "edited", return_dict=False, output_attentions=True, output_hidden_states=True
    )
    manifest = export(str(folder), attention="mca", output=tmp_path / "bundle", schedule="none")
    ids = torch.tensor([2, 7, 8, 3]).numpy()
    assert reference(checkpoint(name))(ids, None).shape == (len(manifest.labels),)
    assert manifest.provenance.parity["library"] < 1e-5 * max(1, manifest.provenance.parity["largest_logit"])
