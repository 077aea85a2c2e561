"""YOSO attention in models of transformers: trained with its Trainer, saved, loaded, exported."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, MODERN, SMALL, VOCAB, fast_tokenizer, randomise

from attenuator.bundle import Manifest
from attenuator.errors import ExportError
from attenuator.export.pipeline import export
from attenuator.runtime import Row, load
from attenuator.training.yoso.attention_interface import NAME, expected, settings_of, use
from attenuator.training.yoso.settings import Settings

# Families whose attention goes through the interface of transformers.
REACHED = {
    name: CHECKPOINTS[name].config
    for name in (
        "bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "ernie", "distilbert", "electra", "albert",
        "albert-groups",
    )
} | {"modernbert-global": transformers.ModernBertConfig(**MODERN | {"global_attn_every_n_layers": 1})}  # fmt: skip
SETTINGS = Settings(num_hashes=12, hash_bits=5)
LABELS = ["no", "yes"]


def build(config: Any, settings: Settings = SETTINGS) -> Any:
    # A copy: `use` writes into the config, and the checkpoints are those of other tests as well.
    model = transformers.AutoModelForSequenceClassification.from_config(copy.deepcopy(config))
    randomise(model)
    use(model, settings)
    return model


@pytest.mark.parametrize("name", REACHED)
def test_padding_changes_no_answer_and_queries_are_trained(name: str) -> None:
    model = build(REACHED[name]).eval()
    ids = torch.randint(5, VOCAB, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    padded = model(input_ids=ids.masked_fill(mask == 0, model.config.pad_token_id or 0), attention_mask=mask).logits
    torch.testing.assert_close(padded[1], model(input_ids=ids[1:2, :5]).logits[0], rtol=1e-4, atol=1e-4)
    again = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(again[0], padded[0], rtol=1e-4, atol=1e-4)
    again.sum().backward()
    projections = [
        weight
        for key, weight in model.named_parameters()
        if key.endswith(("query.weight", "q_lin.weight", "Wqkv.weight"))
    ]
    assert projections
    assert all(weight.grad.abs().max() > 0 for weight in projections)


def test_hashes_are_new_in_training_and_follow_pytorch_s_seed() -> None:
    model = build(CHECKPOINTS["bert"].config)
    ids = torch.randint(5, VOCAB, (1, 30), generator=torch.Generator().manual_seed(0))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        answer: torch.Tensor = model(input_ids=ids).logits.detach()
        return answer

    model.train()
    first = logits(1)
    assert torch.equal(first, logits(1))
    assert not torch.equal(first, logits(2))
    model.eval()
    assert torch.equal(logits(1), logits(2))


def test_gradient_checkpointing_computes_the_same_gradients() -> None:
    """The second forward pass must draw the hashes of the first."""
    ids = torch.randint(5, VOCAB, (2, 30), generator=torch.Generator().manual_seed(0))
    gradients = []
    for checkpointing in (False, True):
        model = build(CHECKPOINTS["bert"].config).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        torch.manual_seed(4)
        model(input_ids=ids).logits.square().sum().backward()
        gradients.append(model.base_model.encoder.layer[0].attention.self.query.weight.grad)
    torch.testing.assert_close(*gradients)


class Reading(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Texts of 6 to 20 tokens, some of them token 7 where the label is 1: the first token has to look for it."""

    def __init__(self, texts: int) -> None:
        draw = np.random.default_rng(0)
        self.rows = []
        for text in range(texts):
            ids = draw.integers(8, VOCAB, int(draw.integers(6, 21)))
            if text % 2:
                ids[draw.random(len(ids)) < 0.4] = 7
            self.rows.append({"input_ids": [2, *ids.tolist()], "labels": text % 2})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small RoBERTa that Trainer has trained and saved, with its tokenizer."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate (the extra `train`)")
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        **SMALL
        | {"num_labels": 2, "id2label": dict(enumerate(LABELS)), "hidden_dropout_prob": 0.0}
        | {"initializer_range": 0.2}
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    use(model, SETTINGS)
    tokenizer = fast_tokenizer()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "runs"),
        max_steps=40,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=Reading(320),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert all(np.isfinite(losses))
    assert losses[-1] < 0.8 * losses[0]
    trainer.save_model(str(folder / "checkpoint"))
    tokenizer.save_pretrained(folder / "checkpoint")
    return folder / "checkpoint"


def test_checkpoint_says_what_it_was_trained_with(trained: Path) -> None:
    stored = json.loads((trained / "config.json").read_text())["attenuator"]
    assert stored == {
        "attention": "yoso", "num_hashes": 12, "hash_bits": 5, "hash": "gaussian", "normalize": 1, "norm_lift": 0.0,
        "gradient": "bound",
    }  # fmt: skip
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained, attn_implementation=NAME)
    assert settings_of(model.config) == SETTINGS


def test_export_takes_it_with_what_it_was_trained_with(trained: Path, tmp_path: Path) -> None:
    manifest: Manifest = export(str(trained), attention="yoso", output=tmp_path / "bundle")
    node = manifest.attention.attributes
    assert (node["hash_bits"], node["hash"], node["normalize"]) == (5, "gaussian", 1)
    assert next(knob.default for knob in manifest.knobs if knob.name == "num_hashes") == 12
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained, attn_implementation=NAME).eval()
    ids = np.random.default_rng(1).integers(5, VOCAB, 40)
    bundle = load(tmp_path / "bundle")
    exact = {knob.name: knob.exact for knob in manifest.knobs}
    with torch.no_grad(), expected(model):
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0]
    [answer] = bundle.run([Row(ids, np.zeros_like(ids), exact)])
    np.testing.assert_allclose(answer.logits, logits.numpy(), rtol=0, atol=1e-4)
    assert model.config.attenuator["num_hashes"] == 12


@pytest.mark.parametrize("name", ["distilbert", "albert"])
def test_evaluation_has_the_hashes_that_are_served(name: str, tmp_path: Path) -> None:
    """Of every layer, those of modules that do not know theirs and of shared ones as well."""
    model = build(REACHED[name]).eval()
    model.save_pretrained(tmp_path / "checkpoint")
    fast_tokenizer().save_pretrained(tmp_path / "checkpoint")
    manifest = export(str(tmp_path / "checkpoint"), attention="yoso", output=tmp_path / "bundle", schedule="none")
    knobs = {knob.name: knob.exact for knob in manifest.knobs} | {"num_hashes": SETTINGS.num_hashes}
    ids = np.random.default_rng(1).integers(5, VOCAB, 40)
    [answer] = load(tmp_path / "bundle").run([Row(ids, np.zeros_like(ids), knobs)])
    for _ in range(2):  # every forward pass begins at the first layer
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0]
        np.testing.assert_allclose(answer.logits, logits.numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "attention", "sentence"),
    [
        ({}, "softmax", "the model was trained with yoso attention"),
        ({"attention": "flash"}, "yoso", "attenuator.attention in the config is 'flash', must be one of: yoso"),
        ({"hash_bits": 17}, "yoso", r"attenuator.hash_bits in the config is 17, must be a whole number in \[1, 16\]"),
        ({"num_hashes": 12.5}, "yoso", "attenuator.num_hashes in the config is 12.5, must be a whole number in"),
        ({"hash": "sha"}, "yoso", "attenuator.hash in the config is 'sha', must be one of: gaussian, hadamard"),
        ({"norm_lift": -1}, "yoso", r"attenuator.norm_lift in the config is -1, must be a number in \[0, 1e\+30\]"),
    ],
    ids=["softmax", "attention", "bits", "hashes", "hash", "lift"],
)
def test_export_refuses_another_attention_and_other_values(
    change: dict[str, Any], attention: str, sentence: str, tmp_path: Path
) -> None:
    build(CHECKPOINTS["bert"].config).save_pretrained(tmp_path / "checkpoint")
    fast_tokenizer().save_pretrained(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "config.json"
    config = json.loads(file.read_text())
    config["attenuator"] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(ExportError, match=sentence):
        export(str(tmp_path / "checkpoint"), attention=attention, output=tmp_path / "bundle")


@pytest.mark.parametrize("name", ["deberta-v2", "mpnet", "longformer", "yoso"])
def test_models_that_compute_attention_by_themselves_are_refused(name: str) -> None:
    model = transformers.AutoModelForSequenceClassification.from_config(copy.deepcopy(CHECKPOINTS[name].config))
    with pytest.raises(ValueError, match="ForSequenceClassification computes its attention by itself"):
        use(model)
    assert model.config._attn_implementation != NAME


def test_a_model_that_takes_the_mask_alone_is_refused() -> None:
    config = transformers.MPNetConfig(**SMALL)
    model = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation=NAME)
    with pytest.raises(ValueError, match="computes its attention by itself"):
        model(input_ids=torch.arange(8)[None])


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (CHECKPOINTS["modernbert"].config, "attention within a window"),
        (transformers.BertConfig(**SMALL, is_decoder=True), "causal attention"),
    ],
    ids=["window", "causal"],
)
def test_other_kinds_of_attention_are_refused(config: Any, kind: str) -> None:
    model = build(config)
    with pytest.raises(ValueError, match=f"asks 'attenuator_yoso' for {kind}"):
        model(input_ids=torch.arange(12)[None])


def test_a_mask_for_pairs_is_refused() -> None:
    model = build(CHECKPOINTS["bert"].config)
    with pytest.raises(ValueError, match="a mask for pairs of tokens"):
        model(input_ids=torch.arange(12)[None], attention_mask=torch.ones(1, 1, 12, 12))


def test_the_interface_s_name_alone_takes_the_defaults_and_records_them() -> None:
    config = transformers.BertConfig(**SMALL)
    model = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation=NAME)
    model(input_ids=torch.arange(12)[None])
    assert model.config.attenuator == {"attention": "yoso"} | {
        "num_hashes": 32, "hash_bits": 8, "hash": "gaussian", "normalize": 1, "norm_lift": 0.0,
        "gradient": "bound",
    }  # fmt: skip


def test_settings_that_a_config_must_not_have_are_named() -> None:
    config = transformers.BertConfig(**SMALL, attenuator={"attention": "yoso", "tau": 8})
    model = transformers.AutoModelForSequenceClassification.from_config(config, attn_implementation=NAME)
    with pytest.raises(
        ValueError, match="attenuator in the config is .*'tau': 8.* no fields but attention, num_hashes"
    ):
        model(input_ids=torch.arange(12)[None])
